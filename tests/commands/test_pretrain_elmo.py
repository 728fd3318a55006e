"""Characters end to end: ELMo pretrains on words, a killed run goes on exactly, and misfits are told at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.texts import made_up_documents, write_text
from support.saved_encoder import load_encoder

from lmtransfer.cli import main
from lmtransfer.objectives.learner import PretrainingLearner

TEXT = ["corpus=text", "corpus.path=a.txt", "corpus.name=mine", "hardware.precision=fp32", "hardware.threads=1"]
TINY = [
    "model.dim=16",
    "model.cell_dim=24",
    "model.char_dim=4",
    "model.filters=[[1,4],[3,8]]",
    "objective.max_length=8",
]
TRAIN = [
    "train.seconds=null",
    "train.batch_tokens=64",
    "train.save_every=2",
    "train.eval_tokens=64",
    "output_root=runs",
]
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on 300 made-up documents and return what it prints as errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    write_text(tmp_path / "a.txt", made_up_documents(300))

    def call(*words: str, code: int = 0) -> str:
        assert main([*words]) == code, capsys.readouterr().err
        torch.set_num_threads(threads)
        return capsys.readouterr().err

    return call


def losses(folder: Path) -> list[dict[str, Any]]:
    kept = ("step", "loss/bilm", "loss/bilm_forward", "validation/bilm", "learning_rate")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in kept if name in row} for row in rows]


def test_elmo_pretrains_on_characters_and_resumes_exactly(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["pretrain", "experiment=elmo_laptop", *TEXT, *TINY, *TRAIN, "train.log_every=1", "train.steps=7"]
    run(*words, "name=whole")
    learn, passes = PretrainingLearner.losses, []

    def killed(self: Any, batch: Any, recurrent_state: Any = None) -> Any:
        passes.append(recurrent_state)
        if len(passes) == 6:
            raise RuntimeError("killed")
        return learn(self, batch, recurrent_state)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingLearner, "losses", killed)
        assert "RuntimeError: killed" in run(*words, "name=parts", code=1)
    assert passes[0] is None
    assert passes[1] is not None
    run(*words, "name=parts", "resume=true")
    whole, parts = (losses(tmp_path / "runs" / "pretrain" / name) for name in ("whole", "parts"))
    assert [row["step"] for row in whole] == list(range(1, 8))
    assert parts == whole
    encoder, tokenizer, _ = load_encoder(tmp_path / "runs" / "pretrain" / "whole")
    assert encoder.vocab_size == tokenizer.vocab_size
    assert encoder.token_embedding is None


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["experiment=elmo_laptop", "tokenizer=unigram"], ("tokenizer=words", "model=elmo_subword_laptop")),
        (["model=elmo_laptop", "objective=mlm", "tokenizer=words"], ("objective=mlm", "bidirectional")),
        (
            ["model=elmo_laptop", "objective=bilm", "tokenizer=words", "model.cell_dim=128"],
            ("model.cell_dim=128", "model.dim"),
        ),
        (["model=elmo_laptop", "objective=bilm", "tokenizer=words", "model.dim=15"], ("model.dim=15", "16")),
    ],
    ids=["pieces for characters", "masked words", "narrow cells", "odd width"],
)
def test_misfits_are_one_clear_message(run: Run, words: list[str], names: tuple[str, ...]) -> None:
    errors = run("pretrain", *TEXT, *words, "train.steps=1", "train.seconds=null", code=2)
    assert all(name in errors for name in names), errors
    assert "Traceback" not in errors


def test_a_model_of_ids_ignores_the_characters(run: Run, tmp_path: Path) -> None:
    sizes = ["model.num_layers=1", "model.dim=16", "model.num_heads=2", "model.hidden_dim=32"]
    run("pretrain", *TEXT, *TRAIN, *sizes, "tokenizer=words", "objective.max_length=16", "train.steps=2", "name=ids")
    assert (tmp_path / "runs" / "pretrain" / "ids" / "result.json").is_file()
