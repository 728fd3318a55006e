"""Heads with one answer per sequence: one of C labels, any of C labels, or a number.

Shape legend: B sequences, E width of a composed vector, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from lmtransfer.models.base import Encoder
from lmtransfer.tasks.heads import (
    ClassificationSpec,
    ClassWeights,
    HeadSpec,
    LabelSetTargets,
    LabelTargets,
    ScoreTargets,
    Targets,
    balanced_weights,
)
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.transfer.heads.base import Activation, Head, Pieces


class ClassificationHead(Head):
    """A softmax over labels; the loss is the cross-entropy in nats summed over sequences; outputs are the C logits.

    In training, a sequence counts with the weight of its label, so that a step's sum divided by its count is the mean
    of ``torch.nn.functional.cross_entropy`` over the whole step, however it is split into micro-batches. In evaluation
    mode the loss is the plain cross-entropy, so that runs with other weights or other smoothing can be compared.
    """

    loss_name: ClassVar[str] = "classification"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    convex: ClassVar[bool] = True
    weights_C: Tensor

    def __init__(
        self,
        *,
        input_dim: int,
        num_labels: int,
        class_weights: ClassWeights | None = None,
        label_smoothing: float = 0.0,
        hidden_dim: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            input_dim=input_dim,
            num_labels=num_labels,
            hidden_dim=hidden_dim,
            activation=activation,
            dropout=dropout,
            hidden_dropout=hidden_dropout,
        )
        self.class_weights, self.label_smoothing = class_weights, label_smoothing
        initial = [1.0] * num_labels if class_weights is None or class_weights == "balanced" else list(class_weights)
        self.register_buffer("weights_C", torch.tensor(initial), persistent=False)

    @classmethod
    @override
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: Mapping[str, Any], *, pieces: Pieces) -> ClassificationHead:
        """Build the head; the task sets weights and smoothing."""
        assert isinstance(spec, ClassificationSpec)
        return cls(
            num_labels=spec.num_labels,
            class_weights=spec.class_weights,
            label_smoothing=spec.label_smoothing,
            **layers,
        )

    def begin(self, targets: Targets[np.ndarray]) -> None:
        """Balance the labels' weights over the training part, if requested."""
        if self.class_weights == "balanced":
            weights_C = balanced_weights(LabelTargets.of(targets).labels, num_labels=self.num_labels)
            self.weights_C.copy_(torch.from_numpy(weights_C))

    def count(self, batch: TaskBatch) -> float:
        """Return the number of sequences; in training with weights, the sum of their labels' weights."""
        if not self.training or self.class_weights is None:
            return len(batch.targets)
        labels_B = LabelTargets.of(batch.targets).labels
        return float(self.weights_C.double()[labels_B.to(self.weights_C.device)].sum())

    @override
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        labels_B = LabelTargets.of(targets).labels
        if not self.training:
            return functional.cross_entropy(logits, labels_B, reduction="sum")
        return functional.cross_entropy(
            logits,
            labels_B,
            weight=None if self.class_weights is None else self.weights_C.to(logits),
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )


class MultiLabelHead(Head):
    """A sigmoid for each label; outputs are the C logits.

    The loss is the binary cross-entropy in nats, summed over sequences and labels.
    """

    loss_name: ClassVar[str] = "multi_label"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    convex: ClassVar[bool] = True

    def count(self, batch: TaskBatch) -> int:
        """Return sequences times labels, so that the mean loss does not depend on the number of labels."""
        return len(batch.targets) * self.num_labels

    @override
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        labels_BC = LabelSetTargets.of(targets).labels.to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits, labels_BC, reduction="sum")


class RegressionHead(Head):
    """A linear layer with a single output; the loss is the squared error summed over sequences."""

    loss_name: ClassVar[str] = "regression"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    convex: ClassVar[bool] = True

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
        """Return the number of sequences."""
        return len(batch.targets)

    @override
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        scores_B = ScoreTargets.of(targets).scores.to(logits.dtype)
        return functional.mse_loss(logits[:, 0], scores_B, reduction="sum")
