from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.objectives import bert

from lmtransfer.errors import RunDirectoryError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.launch.run_once import command_settings
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.pretraining.diagnostics import callbacks_of
from lmtransfer.pretraining.messages import next_lines
from lmtransfer.training.callbacks import UnigramPlateau
from lmtransfer.training.optim.optimizers import AdamW, Muon


def suggested(corpus: str, *, small: bool) -> list[str]:
    """Return the words of the command that the closing message suggests."""
    lines = next_lines(Path("runs/pretrain/mine"), corpus, small=small, output_root=Path("runs"))
    assert lines[-1].split() == ["lmtransfer", "report", "runs"]
    return shlex.split(lines[0].partition("?")[2])


@pytest.mark.parametrize(
    ("corpus", "task", "small"),
    [
        ("python_docs", "python_docs", False),
        ("imdb_unsup", "sst2", True),
        ("text", "text_classification", False),
        ("fra", "text_classification", True),
    ],
)
def test_the_suggested_command_fits_the_text(corpus: str, task: str, small: bool) -> None:
    program, command, *words = suggested(corpus, small=small)
    assert (program, command) == ("lmtransfer", "finetune")
    settings: Any = command_settings(command, words)
    assert settings.task.get("name") == task
    assert (settings.init, settings.seeds, settings.control) == ("runs/pretrain/mine", 5, True)
    assert any(word.startswith("experiment=") for word in words) == small


def test_whoever_has_own_labels_learns_what_the_files_hold() -> None:
    for small in (True, False):
        told = " ".join(next_lines(Path("runs/pretrain/mine"), "text", small=small, output_root=Path("runs")))
        assert "columns text and label" in told
        assert ("few_labels" in told) == small


@pytest.mark.parametrize(
    ("command", "steps", "warned"),
    [("pretrain", 1, "1 step"), ("pretrain", 3, "3 steps"), ("pretrain", 500, None), ("finetune", 1, None)],
)
def test_a_run_of_few_steps_says_so_where_it_is_opened_as_init(
    command: str, steps: int, warned: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("model: null\n")
    (tmp_path / "result.json").write_text(json.dumps({"format": 1, "command": command, "steps": steps}))
    for _ in range(2):  # commands open init more than once
        with pytest.raises(RunDirectoryError):
            open_saved(tmp_path, key="init")
    said = capsys.readouterr().err
    assert said.count("init=") == (warned is not None)
    assert warned is None or warned in said


def test_an_optimiser_is_not_advised_to_a_run_that_uses_it() -> None:
    learner = PretrainingLearner(bert(), [MaskedLanguageModel()])
    advised: list[str] = []
    for optimizer in (Muon(learner=learner, learning_rate=0.01), AdamW(learner=learner, learning_rate=0.01)):
        (plateau,) = callbacks_of(learner, seconds=None, entropy=2.0, from_scratch=True, optimizer=optimizer)
        assert isinstance(plateau, UnigramPlateau)
        outcome = SimpleNamespace(losses={"mlm": 2.0}, updated=True)
        said = [plateau.on_step_end(cast(Any, outcome), {"step": 9}, fraction=0.9) for _ in range(100)]
        advised += [line for lines in said for line in lines]
    assert ["optimizer=muon" in line for line in advised] == [False, True]
    assert all("train.batch_tokens" in line for line in advised)
