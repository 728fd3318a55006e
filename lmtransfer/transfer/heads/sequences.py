"""Heads with one answer for each sequence: one of C labels, any of C labels, or a number.

Shape legend: B sequences, E width of a composed vector, C labels.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lmtransfer.tasks.heads import LabelSetTargets, LabelTargets, ScoreTargets, Targets
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.heads.base import Head, at_least_float32


class ClassificationHead(Head):
    """A softmax over labels; the loss is the cross-entropy in nats summed over sequences; outputs are the C logits."""

    loss_name: ClassVar[str] = "classification"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"

    def count(self, batch: TaskBatch) -> int:
        """Sequences."""
        return len(batch.targets)

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """See ``Head``; every label must be known.

        Args:
            logits: (B, C).
            batch: with targets.
        """
        labels_B = LabelTargets.of(batch.targets).labels
        total = functional.cross_entropy(at_least_float32(logits), labels_B, reduction="sum")
        return Loss(sum=total, count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """See ``Head``; (B, C)."""
        return logits.float()


class MultiLabelHead(Head):
    """A sigmoid for each label; outputs are the C logits.

    The loss is the binary cross-entropy in nats, summed over sequences and labels.
    """

    loss_name: ClassVar[str] = "multi_label"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"

    def count(self, batch: TaskBatch) -> int:
        """Sequences times labels, so that the mean loss does not depend on the number of labels."""
        return len(batch.targets) * self.num_labels

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """See ``Head``; every set of labels must be known.

        Args:
            logits: (B, C).
            batch: with targets.
        """
        found_BC = at_least_float32(logits)
        labels_BC = LabelSetTargets.of(batch.targets).labels.to(found_BC.dtype)
        total = functional.binary_cross_entropy_with_logits(found_BC, labels_BC, reduction="sum")
        return Loss(sum=total, count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """See ``Head``; (B, C)."""
        return logits.float()


class RegressionHead(Head):
    """A linear layer to one number; the loss is the squared error summed over sequences; the output is the number."""

    loss_name: ClassVar[str] = "regression"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"

    @property
    def num_logits(self) -> int:
        """Always 1."""
        return 1

    @torch.no_grad()
    def begin(self, targets: Targets[np.ndarray]) -> None:
        """Set the bias to the mean score, and scale the weights by the scores' deviation."""
        scores = ScoreTargets.of(targets).scores.astype(np.float64)
        self.output.weight.mul_(float(scores.std()))
        self.output.bias.fill_(float(scores.mean()))

    def count(self, batch: TaskBatch) -> int:
        """Sequences."""
        return len(batch.targets)

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """See ``Head``; every score must be known.

        Args:
            logits: (B, 1).
            batch: with targets.
        """
        found_B = at_least_float32(logits)[:, 0]
        scores_B = ScoreTargets.of(batch.targets).scores.to(found_B.dtype)
        return Loss(sum=functional.mse_loss(found_B, scores_B, reduction="sum"), count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """See ``Head``; (B, 1)."""
        return logits.float()
