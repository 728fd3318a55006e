from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.training.model_selection import SelectionWithTies
from lmtransfer.training.state import TrainState
from lmtransfer.transfer.experiment.experiment import Experiment


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95)], 2),
        ([(0.5, 1.0), (0.6, 1.2), (0.6, 1.2)], 2),
        ([(0.7, 1.0), (0.6, 0.1)], 1),
        ([(0.5, 1.0), (0.5, float("nan"))], 1),
    ],
)
def test_ties_are_decided_by_the_loss_and_nothing_else_is(evaluations: list[tuple[float, float]], best: int) -> None:
    selection = SelectionWithTies(metric="accuracy", higher_is_better=True)
    state = TrainState()
    improved = []
    for step, (accuracy, loss) in enumerate(evaluations, start=1):
        state.step = step
        improved.append(selection.observe({"accuracy": accuracy, "loss": loss}, state))
    assert state.best_step == best
    assert state.best == evaluations[best - 1][0]
    assert improved[best - 1]
    assert not any(improved[best:])


def test_a_better_tie_counts_for_patience() -> None:
    selection = SelectionWithTies(metric="accuracy", higher_is_better=True, patience=2)
    state = TrainState()
    for loss in (1.0, 0.9, 0.8, 0.7):
        selection.observe({"accuracy": 0.5, "loss": loss}, state)
    assert state.finished is None
    for loss in (0.9, 0.9):
        selection.observe({"accuracy": 0.5, "loss": loss}, state)
    assert state.finished == "patience"


@pytest.mark.parametrize(
    ("tries", "best"),
    [
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.5, 0.6)], 0.3: [(0.6, 0.8), (0.6, 0.8)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.4, 0.6)]}, 0.1),
        ({0.1: [(0.5, None), (0.5, 0.1)], 0.2: [(0.5, 7.0), (0.5, 7.0)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.5, 0.9)], 0.2: [(0.5, 0.9), (0.5, 0.9)]}, 0.1),
    ],
)
def test_of_learning_rates_with_the_same_mean_score_the_one_with_the_lowest_mean_loss_is_chosen(
    tries: dict[float, list[tuple[float, float | None]]], best: float, tmp_path: Path
) -> None:
    (tmp_path / "tries").mkdir()
    for rate, scores in tries.items():
        for seed, (score, loss) in enumerate(scores):
            tried = {"arm": "pretrained", "seed": seed, "learning_rate": rate, "score": score}
            tried |= {} if loss is None else {"loss": loss}
            (tmp_path / "tries" / f"pretrained-seed-{seed}-rate-{rate:g}.json").write_text(json.dumps(tried))
    data = SimpleNamespace(choosing=None)
    setting: Any = SimpleNamespace(solves=False, pretraining_seed=None, data=data, shown=lambda score: f"{score:.3f}")
    config = {"seed": 0, "seeds": 2, "control": False, "learning_rates": list(tries)}
    experiment = Experiment("finetune", config, [setting], RunDirectory(tmp_path), Console(quiet=True))
    assert experiment._learning_rate("pretrained") == best
