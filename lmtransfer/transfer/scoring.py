"""Scores a learner: examples are sorted by length and packed, and their outputs are put back in order.

Shape legend: S sequences, R rows of targets, K columns of a head's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lmtransfer.data.micro_batches import evaluation_batches
from lmtransfer.runs.predictions import MOST_EXAMPLES, is_kept
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import HeadSpec, Targets
from lmtransfer.tasks.metrics.scored_examples import ScoredExamples, scores_by_class, undefined_metrics
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training import process_group
from lmtransfer.transfer.learner import TaskLearner

#: Tokens per evaluation batch: enough to keep two cores busy, few enough for a laptop's memory.
EVALUATION_TOKENS = 4096
#: Predicted scores that differ by less, relative to their size or to 1, count as equal.
_ROUNDING = 1e-6

Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Outputs:
    """A head's outputs, float32, (R, K), in the order of the targets, and the mean loss (None without gold answers)."""

    values: np.ndarray
    loss: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of a learner.

    Attributes:
        metrics: value of each metric, the main metric first; ``loss`` last.
        collapsed: whether all predicted labels (or scores) are the same although the gold labels (or scores) differ.
        answers: the prediction for each example; None if not requested, or if predictions cannot be stored.
        calibration: calibration of the probabilities as plain values; None if not requested, or if the task has none.
    """

    metrics: dict[str, float]
    outputs: np.ndarray
    collapsed: bool
    answers: ScoredExamples | None = None
    calibration: dict[str, Any] | None = None

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of a result besides the metrics, if they were requested.

        ``calibration`` of the probabilities, ``classes`` with the scores of each class (see ``metrics.by_class``), and
        ``undefined`` with the reasons why metrics count as 0.
        """
        if self.answers is None:
            return {} if self.calibration is None else {"calibration": self.calibration}
        entries = {
            "calibration": self.calibration,
            "classes": scores_by_class(self.answers),
            "undefined": undefined_metrics(self.answers, self.metrics),
        }
        return {name: value for name, value in entries.items() if value}

    @property
    def task_fingerprint(self) -> str | None:
        """The hash of the scored examples, as in ``RunResult``; None without answers."""
        return None if self.answers is None else self.answers.fingerprint(next(iter(self.metrics)))


def run_head(
    learner: TaskLearner,
    source: TaskSource,
    *,
    device: torch.device | str = "cpu",
    autocast: Autocast = nullcontext,
    max_tokens: int = EVALUATION_TOKENS,
) -> Outputs:
    """Run the head on every sequence once, for any number of ranks.

    Only the outputs take memory in proportion to the number of sequences. The result does not depend on batch sizes.
    Each rank computes a share of the batches and returns all outputs.
    """
    encoded = source.encoded
    have_gold = all(example.has_gold for example in encoded.examples)
    values: np.ndarray | None = None
    loss_sum, count = 0.0, 0.0
    batches = evaluation_batches(
        source, micro_batch_tokens=max_tokens, rank=process_group.rank(), world_size=process_group.world_size()
    )
    with evaluation_mode(learner), torch.no_grad():
        for batch in batches:
            batch_on_device = batch.to(device)
            with autocast():
                logits = learner.logits(batch_on_device)
                outputs = learner.head.outputs(logits, batch_on_device).cpu().numpy()
                if have_gold:
                    loss = learner.head.loss(logits, batch_on_device)
                    loss_sum += float(loss.sum)
                    count += float(loss.count)
            if values is None:
                values = np.zeros((len(encoded.targets), outputs.shape[1]), dtype=np.float32)
            values[encoded.target_rows(np.asarray(batch.rows))] = outputs
    parts = [part for part in process_group.gather(values) if part is not None]
    sums = process_group.sum_over_ranks({"loss": loss_sum, "count": count})
    return Outputs(
        values=np.sum(parts, axis=0) if parts else np.zeros((0, 1), dtype=np.float32),
        loss=sums["loss"] / sums["count"] if have_gold and sums["count"] else None,
    )


def evaluate(
    learner: TaskLearner,
    task: Task,
    source: TaskSource,
    *,
    device: torch.device | str = "cpu",
    autocast: Autocast = nullcontext,
    max_tokens: int = EVALUATION_TOKENS,
    keep: bool = False,
) -> Evaluation:
    """Score every example, each with a gold answer, by the task's official metrics; see ``run_head``.

    With ``keep``, the result has calibration and each prediction, if the task supports them and there are not too many.
    """
    outputs = run_head(learner, source, device=device, autocast=autocast, max_tokens=max_tokens)
    return score_outputs(task, source.encoded, outputs, keep=keep)


def score_outputs(task: Task, encoded: EncodedExamples, outputs: Outputs, *, keep: bool = False) -> Evaluation:
    """Score the outputs of a head, or the joined outputs of heads that each scored a part of the examples."""
    answers, scored = task.answers(encoded, outputs.values), None
    if keep and len(encoded.examples) <= MOST_EXAMPLES:
        predicted = list(answers)
        answers, candidate = iter(predicted), task.scored_examples(encoded.examples, predicted)
        scored = candidate if candidate is not None and is_kept(candidate) else None
    metrics = task.score(encoded.examples, answers)
    return Evaluation(
        metrics={**metrics, "loss": 0.0 if outputs.loss is None else outputs.loss},
        outputs=outputs.values,
        collapsed=is_collapsed(task.head, outputs.values, encoded.targets),
        answers=scored,
        calibration=task.calibration(encoded, outputs.values) if keep else None,
    )


def is_collapsed(head: HeadSpec, outputs: np.ndarray, targets: Targets[np.ndarray]) -> bool:
    """Whether all predictions are the same although the gold answers differ; always False for spans.

    Scores that differ only by float32 rounding, which depends on the batch, count as the same.
    """
    predicted, gold = head.predictions(outputs), head.gold(targets)
    if predicted is None or gold is None or len(predicted) == 0:
        return False
    are_same = np.allclose(predicted, predicted[:1], rtol=_ROUNDING, atol=_ROUNDING)
    return are_same and len(np.unique(gold, axis=0)) > 1


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode inside the block; restore its mode afterwards."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
