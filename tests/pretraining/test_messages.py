from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fakes.objectives import bert

from lmtransfer.errors import RunDirectoryError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.pretraining.diagnostics import callbacks_of
from lmtransfer.training.callbacks import UnigramPlateau
from lmtransfer.training.optim.optimizers import AdamW, Muon


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
