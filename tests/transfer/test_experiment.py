from __future__ import annotations

import pytest

from lmtransfer.training.evaluation import SelectionWithTies
from lmtransfer.training.state import TrainState


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
