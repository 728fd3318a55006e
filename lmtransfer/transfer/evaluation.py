"""Scoring a learner on examples: sorted by length, packed, streamed into metrics, put back into order.

Shape legend: N examples, B sequences of a batch, C labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lmtransfer.data.evaluation_batches import evaluation_batches
from lmtransfer.errors import DataError
from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.baseline import is_collapsed
from lmtransfer.tasks.encoded import NO_LABEL
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training import distributed
from lmtransfer.transfer.learner import TaskLearner

#: Tokens of an evaluation batch: large enough to keep two cores busy, small enough for a laptop's memory.
EVALUATION_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a learner scores.

    Attributes:
        metrics: value of each metric, the main one first; ``loss`` (nats an example) last.
        predictions: predicted label index of each example in the order of the split, int64, shape (N,).
        collapsed: every prediction is the same label although the gold labels are not.
    """

    metrics: dict[str, float]
    predictions: np.ndarray
    collapsed: bool


def evaluate(
    learner: TaskLearner,
    source: TaskSource,
    metrics: list[Metric],
    *,
    device: torch.device | str = "cpu",
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    max_tokens: int = EVALUATION_TOKENS,
    index_map: np.ndarray | None = None,
) -> Evaluation:
    """Score every example once, whatever the number of ranks.

    Memory does not grow with the number of examples but for eight bytes a prediction; the result does not depend
    on the batch sizes. Ranks share the batches, and the metrics' states are merged, so each rank returns the whole.

    Args:
        learner: what is scored; its mode is put back afterwards.
        source: the examples, with every gold label.
        metrics: fresh metrics.
        device: where the learner is.
        autocast: makes the context of the forward pass (precision).
        max_tokens: most tokens of a batch.
        index_map: the task's index of each of the learner's labels, where their orders differ, int64, shape (C,).

    Raises:
        DataError: examples without a gold label (published test sets).
    """
    labels = source.encoded.labels
    hidden = int((labels == NO_LABEL).sum())
    if hidden:
        raise DataError(
            f"{hidden} of {len(labels)} examples have no gold label (-1, as in published test files): such a split "
            "cannot be scored; choose another split"
        )
    predictions = np.zeros(len(labels), dtype=np.int64)
    order = None if index_map is None else torch.from_numpy(np.argsort(index_map))
    loss_sum = 0.0
    batches = evaluation_batches(
        source, micro_batch_tokens=max_tokens, rank=distributed.rank(), world_size=distributed.world_size()
    )
    with evaluation_mode(learner):
        for batch in batches:
            with autocast():
                logits_BC = learner.predict(batch.to(device)).cpu()
            if order is not None:
                logits_BC = logits_BC[:, order]
            rows = np.asarray(batch.rows)
            predicted = logits_BC.argmax(1).numpy()
            predictions[rows] = predicted
            loss_sum += float(functional.cross_entropy(logits_BC.double(), batch.labels_B, reduction="sum"))
            for metric in metrics:
                metric.update(predicted, labels[rows])
    _merge_ranks(metrics)
    predictions = np.sum(distributed.gather(predictions), axis=0)
    loss_sum = distributed.sum_over_ranks({"loss": loss_sum})["loss"]
    return Evaluation(
        metrics={**{metric.name: metric.compute() for metric in metrics}, "loss": loss_sum / len(labels)},
        predictions=predictions,
        collapsed=is_collapsed(np.bincount(predictions)) and len(np.unique(labels)) > 1,
    )


def _merge_ranks(metrics: list[Metric]) -> None:
    """Let each metric have seen what it saw on every rank."""
    for metric in metrics:
        for rank, state in enumerate(distributed.gather(metric.state())):
            if rank != distributed.rank():
                metric.merge(state)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in evaluation mode; its mode is put back afterwards."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
