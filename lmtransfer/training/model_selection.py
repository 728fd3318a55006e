"""The choice of the best evaluation, and early stopping if no later evaluation is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from typing_extensions import override

from lmtransfer.errors import ConfigError, TrainingError
from lmtransfer.training.state import TrainState


class ModelSelection:
    """Keeps track of the best value of one metric, the highest or the lowest.

    Args:
        metric: name of the metric that decides.
        higher_is_better: direction of the metric; False for losses.
        patience: training stops after this many evaluations in a row without a better value; None disables early
            stopping.

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
        """Record an evaluation in ``state``; return whether it is the best so far (False if not finite).

        Raises:
            TrainingError: the evaluation lacks the metric.
        """
        if self.metric not in metrics:
            raise TrainingError(
                f"the metric {self.metric!r} must choose the best checkpoint, but the evaluation has only "
                f"{', '.join(sorted(metrics))}"
            )
        value, best = metrics[self.metric], state.best
        if best is not None:  # this metric in the best evaluation: an earlier run may have used another metric
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
    """Chooses, among evaluations with the same value of the main metric, the one with the lowest ``loss``.

    Without this rule, the earliest would be chosen: with a hundred held-out labels, often a model that has learned
    almost nothing yet.
    """

    @override
    def observe(self, metrics: Mapping[str, float], state: TrainState) -> bool:
        tied = state.best is not None and metrics.get(self.metric) == state.best
        if tied and metrics["loss"] < state.best_metrics["loss"]:
            state.best = None
        return super().observe(metrics, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """How a learner is evaluated on held-out data during training.

    Attributes:
        measure: returns the metrics, which are logged as ``validation/<name>``.
        every: steps between evaluations; None evaluates only at the end.
        selection: chooses the best evaluation and stops early; None saves no checkpoint ``best``.
    """

    measure: Callable[[], dict[str, float]]
    every: int | None = None
    selection: ModelSelection | None = None
