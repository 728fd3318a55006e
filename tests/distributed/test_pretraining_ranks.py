"""Pretraining on two and three ranks (gloo, on the CPU) gives the same encoder as on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.start_ranks import start_command

from lmtransfer.cli import main

ROOT = Path(__file__).parents[2]
STEPS = 12
WORDS = [
    *("experiment=null", "model=bert_tiny", "model.dropout=0", "objective=mlm", "objective.max_length=16"),
    *("corpus=text", "corpus.path=text.txt", "corpus.validation_fraction=0.2", "tokenizer.vocab_size=60"),
    *("tokenizer.allow_fewer=true", "train.batch_tokens=256", "train.log_every=1", f"train.steps={STEPS}"),
    *("train.save_every=2", "optimizer=adamw", "optimizer.learning_rate=1e-3", "hardware=exact"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    documents = [" . ".join(f"w{i % 7} w{(i * j) % 11} w{j}" for j in range(3 + i % 9)) for i in range(90)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    start_command("pretrain", *WORDS, "name=ranks-1", ranks=1, folder=folder)
    return folder


def _records(world: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (world / "runs/pretrain" / run / "metrics.jsonl").read_text().splitlines()]


def _assert_same_losses(world: Path, run: str) -> None:
    one, several = (_records(world, name) for name in ("ranks-1", run))
    assert [record["step"] for record in several] == list(range(1, STEPS + 1))
    for key in ("loss", "gradient_norm", "tokens"):
        # The order of float32 sums differs: a few units in the last place after twelve steps.
        assert [record[key] for record in several] == pytest.approx([record[key] for record in one], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_tokens", ["null", "40"])
def test_three_ranks_have_the_losses_of_one(micro_batch_tokens: str, world: Path) -> None:
    words = [f"name=of-{micro_batch_tokens}", f"train.micro_batch_tokens={micro_batch_tokens}"]
    start_command("pretrain", *WORDS, *words, ranks=3, folder=world)
    _assert_same_losses(world, f"of-{micro_batch_tokens}")


@pytest.mark.slow
def test_a_sharded_run_is_read_like_any_other(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by torchrun itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LMTRANSFER_CACHE": str(world)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*launcher, "-m", "lmtransfer", "pretrain", *WORDS]
    words += ["name=sharded", "hardware.shard=true", "train.ema_decay=0.9"]
    done = subprocess.run(words, cwd=world, env=environment, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    _assert_same_losses(world, "sharded")
    monkeypatch.chdir(world)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(world))  # the same user
    assert main(["evaluate", "run=runs/pretrain/sharded", "hardware=exact"]) == 0
    pretrained, evaluated = (
        json.loads(Path(f"runs/{run}/result.json").read_text())["metrics"]["loss"]
        for run in ("pretrain/sharded", "evaluate/pretrain-sharded")
    )
    assert evaluated == pytest.approx(pretrained, rel=1e-6)  # of the averaged weights


@pytest.mark.parametrize("words", [["pretrain", "phases=words_then_masked"], ["finetune", "init=hf:none", "task=sst2"]])
def test_what_cannot_be_sharded_says_so(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "hardware.shard=true"]) == 2
    assert "hardware.shard=true" in capsys.readouterr().err
