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

from lmtransfer.errors import DataError
from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.baseline import is_collapsed
from lmtransfer.tasks.encoded import NO_LABEL
from lmtransfer.tasks.source import TaskBatch, TaskSource
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
    max_examples: int | None = None,
    index_map: np.ndarray | None = None,
) -> Evaluation:
    """Score every example once.

    Memory does not grow with the number of examples but for eight bytes a prediction; the result does not depend
    on the batch sizes.

    Args:
        learner: what is scored; its mode is put back afterwards.
        source: the examples, with every gold label.
        metrics: fresh metrics.
        device: where the learner is.
        autocast: makes the context of the forward pass (precision).
        max_tokens: most tokens of a batch.
        max_examples: most examples of a batch; None: no limit.
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
    loss_sum = 0.0
    for batch, logits_BC in batch_logits(
        learner, source, device=device, autocast=autocast, max_tokens=max_tokens, max_examples=max_examples
    ):
        rows = np.asarray(batch.rows)
        if index_map is not None:
            logits_BC = logits_BC[:, torch.from_numpy(np.argsort(index_map))]
        predicted = logits_BC.argmax(1).numpy()
        predictions[rows] = predicted
        targets_B = torch.from_numpy(labels[rows])
        loss_sum += float(functional.cross_entropy(logits_BC.double(), targets_B, reduction="sum"))
        for metric in metrics:
            metric.update(predicted, labels[rows])
    counts = np.bincount(predictions)
    return Evaluation(
        metrics={**{metric.name: metric.compute() for metric in metrics}, "loss": loss_sum / len(labels)},
        predictions=predictions,
        collapsed=is_collapsed(counts) and len(np.unique(labels)) > 1,
    )


def batch_logits(
    learner: TaskLearner,
    source: TaskSource,
    *,
    device: torch.device | str,
    autocast: Callable[[], AbstractContextManager[object]],
    max_tokens: int,
    max_examples: int | None,
) -> Iterator[tuple[TaskBatch, torch.Tensor]]:
    """Each batch with its logits (B, C) on the host, in evaluation mode without gradients."""
    with evaluation_mode(learner):
        for batch in source.in_length_order(max_tokens=max_tokens, max_examples=max_examples):
            with autocast():
                logits_BC = learner.predict(batch.to(device))
            yield batch, logits_BC.cpu()


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in evaluation mode; its mode is put back afterwards."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
