"""Tiny pretrainings in phases: a folder to run them in, what they log and save, and Ctrl-C in one of their steps."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.transfer_files import make_world, sentence
from safetensors.torch import load_file

from lmtransfer.training import loop

TINY = [
    *("pretrain", "experiment=null", "train.seconds=null", "train.steps=10", "model=bert_tiny", "model.dim=16"),
    *("model.num_heads=2", "model.hidden_dim=16", "model.num_layers=1", "model.max_length=32", "model.dropout=0.1"),
    *("objective=mlm", "objective.max_length=16", "corpus=text", "corpus.path=data/text.txt"),
    *("corpus.validation_fraction=0.2", "tokenizer.vocab_size=60", "tokenizer.allow_fewer=true"),
    *("train.batch_tokens=64", "hardware=exact", "train.log_every=1", "train.eval_every=4"),
]
WORDS = [*TINY, "phases=words_then_masked"]
#: Masks, rows and batches change; the losses stay.
GROWING = """
first: {share: 0.4, objective: {mask_prob: 0.4}}
second: {share: 0.2, objective: {max_length: 32}, train: {batch_tokens: 128}}
third: {share: 0.4, objective: {mask_prob: 0.2}, optimizer: {learning_rate: 0.01}}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phases")
    make_world(folder)
    rng = random.Random(0)
    documents = [" . ".join(sentence(k % 2, rng) for _ in range(6)) for k in range(60)]
    (folder / "data/text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "own/phases").mkdir(parents=True)
    (folder / "own/phases/growing.yaml").write_text(GROWING)
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path / "world"
    torch.set_num_threads(threads)


def records(run: str) -> list[dict[str, Any]]:
    """What was logged, without times."""
    lines = (Path("runs/pretrain") / run / "metrics.jsonl").read_text().splitlines()
    timed = ("seconds", "tokens_per_second")
    return [{key: value for key, value in json.loads(line).items() if key not in timed} for line in lines]


def saved(run: str, file: str = "model", checkpoint: str = "last") -> dict[str, torch.Tensor]:
    return load_file(Path("runs/pretrain") / run / "checkpoints" / checkpoint / f"{file}.safetensors")


def assert_same(one: str, other: str) -> None:
    for checkpoint in ("last", "best"):
        for file in ("model", "optimizer"):
            first, second = saved(one, file, checkpoint), saved(other, file, checkpoint)
            assert first.keys() == second.keys()
            assert all(torch.equal(first[name], second[name]) for name in first), (checkpoint, file)
    assert records(one) == records(other)


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C in a step does."""
    taken = loop.Trainer._step

    def counted(self: loop.Trainer, steps: Any) -> str | None:
        monkeypatch.setattr(loop, "requested_stop", lambda: "Ctrl-C" if self.state.step == step else None)
        return taken(self, steps)

    monkeypatch.setattr(loop.Trainer, "_step", counted)
