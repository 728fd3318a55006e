"""Losses on held-out batches. They do not depend on how the examples are batched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from lmtransfer.training import process_group
from lmtransfer.training.data_parallel import is_sharded
from lmtransfer.training.learner import Learner
from lmtransfer.training.precision import Precision
from lmtransfer.training.signals import StopDuringEvaluation, agreed_stop


def iterate_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over the batches in step with the other ranks, which may have fewer batches.

    Raises:
        StopDuringEvaluation: any rank received SIGTERM or Ctrl-C.
    """
    iterator = iter(batches)
    while True:
        batch = next(iterator, None)
        if not process_group.any_rank(batch is not None):
            return
        if agreed_stop():
            raise StopDuringEvaluation
        if batch is not None:
            yield batch


def _with_fillers(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield the batches and whether they count: a rank repeats one while others have more, for a sharded learner.

    Raises:
        StopDuringEvaluation: any rank received SIGTERM or Ctrl-C.
    """
    iterator = iter(batches)
    batch = next(iterator, None)
    filler = next((first for first in process_group.gather(batch) if first is not None), None)
    while process_group.any_rank(batch is not None):
        if agreed_stop():
            raise StopDuringEvaluation
        yield (filler, False) if batch is None else (batch, True)
        batch = next(iterator, None)


def evaluate_losses(
    learner: Learner,
    batches: Iterable[Any],
    *,
    device: torch.device | str = "cpu",
    precision: Precision | None = None,
) -> dict[str, float]:
    """Compute the mean of each named loss over all ``batches``, and their weighted total as ``loss``.

    It runs in evaluation mode (restoring the mode afterwards), without gradients, and with a separate recurrent state
    that starts empty. Under ``torchrun``, each rank passes its own share of the batches.

    Args:
        learner: an ``nn.Module`` that is a ``Learner``.
        batches: micro-batches.
        device: device of the learner.
        precision: number format; float32 by default.

    Returns:
        One number for each loss; losses with a count of 0 are omitted.

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
            even = (
                _with_fillers(batches) if is_sharded(learner) else ((batch, True) for batch in iterate_batches(batches))
            )
            for batch, counted in even:
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
