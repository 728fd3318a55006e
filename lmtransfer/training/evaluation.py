"""Losses on held-out data, which do not depend on how the examples are batched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from lmtransfer.errors import TrainingError
from lmtransfer.training import process_group
from lmtransfer.training.checkpoints import TrainState
from lmtransfer.training.data_parallel import is_sharded
from lmtransfer.training.learner import Learner
from lmtransfer.training.precision import Precision
from lmtransfer.training.signals import StopDuringEvaluation, agreed_stop


def _in_step(batches: Iterable[Any], *, repeats: bool) -> Iterator[tuple[Any, bool]]:
    """Yield each batch and whether it counts, in lockstep with the other ranks, which may have more or fewer batches.

    Args:
        repeats: whether a rank that has no batches left repeats one until all ranks are done; a sharded learner needs
            this.

    Raises:
        StopDuringEvaluation: any rank received SIGTERM or Ctrl-C.
    """
    iterator = iter(batches)
    batch = next(iterator, None)
    filler = None
    if repeats:
        filler = next((first for first in process_group.gather(batch) if first is not None), None)
    while process_group.any_rank(batch is not None):
        if agreed_stop():
            raise StopDuringEvaluation
        if batch is not None:
            yield batch, True
        elif repeats:
            yield filler, False
        batch = next(iterator, None)


def evaluate_losses(
    learner: Learner,
    batches: Iterable[Any],
    *,
    device: torch.device | str = "cpu",
    precision: Precision | None = None,
) -> dict[str, float]:
    """Compute the mean of each named loss over all ``batches``, and their weighted total as ``loss``.

    The learner runs in evaluation mode, without gradients, and with a separate recurrent state that starts empty; its
    mode is restored afterwards. Under ``torchrun``, each rank passes its own share of the batches.

    Raises:
        StopDuringEvaluation: SIGTERM or Ctrl-C was received.
    """
    precision = precision or Precision(device=device)
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    recurrent_state: Any = None
    modes = {module: module.training for module in learner.modules()}
    learner.eval()
    try:
        with torch.no_grad():
            for batch, counted in _in_step(batches, repeats=is_sharded(learner)):
                with precision.autocast():
                    losses, recurrent_state = learner(batch.to(device), recurrent_state)
                for name, loss in losses.items() if counted else ():
                    sums[name] = sums.get(name, 0.0) + float(loss.sum)
                    counts[name] = counts.get(name, 0.0) + float(loss.count)
                    weights[name] = loss.weight
    finally:
        for module, mode in modes.items():
            module.training = mode
    sums, counts = process_group.sum_over_ranks(sums), process_group.sum_over_ranks(counts)
    for other in process_group.gather(weights):
        weights = {**other, **weights}
    means = {name: sums[name] / counts[name] for name in sums if counts[name]}
    return {"loss": sum(weights[name] * mean for name, mean in means.items()), **means}


class ModelSelection:
    """Keeps track of the best value of one metric, the highest or the lowest.

    Args:
        patience: training stops after this many evaluations in a row without a better value; None disables early
            stopping.
    """

    def __init__(self, *, metric: str = "loss", higher_is_better: bool = False, patience: int | None = None) -> None:
        self.metric = metric
        self.higher_is_better = higher_is_better
        self.patience = patience

    def observe(self, metrics: Mapping[str, float], state: TrainState) -> bool:
        """Record an evaluation in ``state``; return whether it is the best so far (False if not finite)."""
        if self.metric not in metrics:
            raise TrainingError(
                f"the best checkpoint is chosen by the metric {self.metric!r}, but the evaluation has only "
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

    Without this rule, the earliest would win. With only a hundred held-out examples, ties are common, and the earliest
    is often a model that has learned almost nothing yet.
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
        every: steps between evaluations; None evaluates only at the end.
        selection: chooses the best evaluation and stops early; None saves no checkpoint ``best``.
    """

    measure: Callable[[], dict[str, float]]
    every: int | None = None
    selection: ModelSelection | None = None
