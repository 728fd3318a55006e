"""Which evaluation was the best, and whether it is time to stop for lack of a better one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lmtransfer.errors import ConfigError, TrainingError
from lmtransfer.training.state import TrainState


class ModelSelection:
    """Keeps the best value of one metric, in the direction that the metric declares.

    Args:
        metric: which number of the evaluation decides.
        higher_is_better: its direction; False for losses.
        patience: evaluations in a row without a better value after which training stops; None never stops.

    Raises:
        ConfigError: ``patience`` is less than 1.
    """

    def __init__(self, *, metric: str = "loss", higher_is_better: bool = False, patience: int | None = None) -> None:
        if patience is not None and patience < 1:
            raise ConfigError(f"train.patience={patience} must be 1 or more, or null to train to the end of the budget")
        self.metric = metric
        self.higher_is_better = higher_is_better
        self.patience = patience

    def observe(self, metrics: Mapping[str, float], state: TrainState) -> bool:
        """Take note of an evaluation in ``state``; whether it is the best so far. A value that is not finite never is.

        Raises:
            TrainingError: the evaluation has no such metric.
        """
        if self.metric not in metrics:
            raise TrainingError(
                f"the metric {self.metric!r}, by which the best checkpoint is chosen, is not among those evaluated: "
                f"{', '.join(sorted(metrics))}"
            )
        value, best = metrics[self.metric], state.best
        if best is not None:  # of a run that was begun with another metric, the value of this one
            best = state.best_metrics.get(self.metric, best)
        if math.isfinite(value) and (best is None or (value > best if self.higher_is_better else value < best)):
            state.best, state.best_step, state.evaluations_since_best = value, state.step, 0
            state.best_metrics = dict(metrics)
            return True
        state.evaluations_since_best += 1
        if self.patience is not None and state.evaluations_since_best >= self.patience and state.finished is None:
            state.finished = "patience"
        return False


class SelectionWithTies(ModelSelection):
    """Of evaluations with the same main metric, the one with the lowest ``loss`` is the best.

    Without this, the earliest of them would be, which for a hundred held-out labels is often a model that has hardly
    begun to learn.
    """

    def observe(self, metrics: Mapping[str, float], state: TrainState) -> bool:
        """See ``ModelSelection.observe``; the evaluation must have ``loss``."""
        tied = state.best is not None and metrics.get(self.metric) == state.best
        if tied and metrics["loss"] < state.best_metrics["loss"]:
            state.best = None
        return super().observe(metrics, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How a learner is measured on held-out data while it is trained.

    Attributes:
        measure: gives the numbers, which are logged as ``validation/<name>``.
        every: steps between evaluations; None evaluates at the end only.
        selection: which evaluation is best, and when to stop for lack of a better one; None saves no ``best``.
    """

    measure: Callable[[], dict[str, float]]
    every: int | None = None
    selection: ModelSelection | None = None
