"""Heads, which turn the encoder's vectors into labels, sets of labels, scores, or labels of words.

``span_head`` has the head for answer spans.

Shape legend: T real tokens of a packed batch, B sequences, W words to tag, N tokens or sequences, E width of a head's
input, C logits (labels), R rows of targets, K columns of outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Dropout
from lmtransfer.tasks.heads import (
    NO_LABEL,
    ClassificationSpec,
    ClassWeights,
    HeadSpec,
    LabelSetTargets,
    LabelTargets,
    ScoreTargets,
    TagTargets,
    Targets,
    balanced_weights,
)
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.standardizer import Standardizer

#: Standard deviation of new weights, as in the published BERT.
INITIAL_DEVIATION = 0.02

#: The tokens of a word that determine its label.
Pieces = Literal["first", "last", "mean"]
Activation = Literal["tanh", "gelu", "relu"]
_ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayers:
    """Sizes, activation and dropout of a head's layers; if ``hidden_dim`` is None, there is no hidden layer."""

    input_dim: int
    hidden_dim: int | None = None
    activation: Activation = "tanh"
    dropout: float = 0.1
    hidden_dropout: float = 0.0


class Head(nn.Module):
    """The base class of heads, which turn vectors into logits and compute the loss and the outputs.

    A head is dropout and a linear layer (Devlin et al. 2019, section 4.1), with an optional hidden layer before them.
    Weights are initialized from a normal distribution with deviation 0.02, and biases with zeros.

    Attributes:
        per: whether the input is one vector per sequence, (B, E), or one per real token, (T, E), sequences end to end.
        graph_outputs: names of the outputs of an exported graph: one for all logits, or one for each logit; empty if
            the head cannot be exported.
        convex: whether ``row_loss`` is defined, so that a linear head can be fitted to its optimum.
        cancellation: the largest sum of magnitudes that cancel in the first layer after standardization has been folded
            into it; rounding errors are proportional to this sum.
    """

    loss_name: ClassVar[str]
    per: ClassVar[Literal["sequence", "token"]]
    convex: ClassVar[bool] = False

    def __init__(self, layers: HeadLayers, *, num_labels: int = 0) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.cancellation = 0.0
        self.hidden = None if layers.hidden_dim is None else nn.Linear(layers.input_dim, layers.hidden_dim)
        self.activate = _ACTIVATE[layers.activation]
        self.hidden_dropout = Dropout(layers.hidden_dropout)
        self.dropout = Dropout(layers.dropout)
        self.output = nn.Linear(layers.input_dim if layers.hidden_dim is None else layers.hidden_dim, self.num_logits)
        for layer in (self.hidden, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
                nn.init.zeros_(layer.bias)

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of an exported graph (see ``Head``)."""
        return ("logits",)

    @classmethod
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: HeadLayers, *, pieces: Pieces) -> Head:
        """Build the head for a task."""
        return cls(layers, num_labels=spec.num_labels)

    @property
    def num_logits(self) -> int:
        """C, the number of logits, with the labels' logits last."""
        return self.num_labels

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits, (N, E) -> (N, C); half precision under autocast."""
        if self.hidden is not None:
            hidden = self.activate(self.hidden(self.hidden_dropout(hidden)))
        logits: Tensor = self.output(self.dropout(hidden))
        return logits

    @abstractmethod
    def count(self, batch: TaskBatch) -> float:
        """Return the divisor of the loss, which is known before the forward pass."""

    def rows(self, values: Tensor, batch: TaskBatch) -> Tensor:
        """Return the values for each target row of the batch, (N, K) -> (R, K); linear in the values."""
        return values

    @abstractmethod
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        """Return the loss summed over rows, a convex function of the logits (R, K); requires gold answers."""

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """Return the loss of a batch's logits, at least float32; requires gold answers."""
        rows = self.rows(at_least_float32(logits), batch)
        return Loss(sum=self.row_loss(rows, batch.targets), count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the outputs, float32, (R, K), one row per target row; gold answers are not used."""
        return self.rows(at_least_float32(logits), batch).float()

    def begin(self, targets: Targets[np.ndarray]) -> None:
        """Initialize the head from the gold answers of the training examples, before the first step."""

    def fold(self, standardising: Standardizer) -> None:
        """Fold the features' mean and deviation into the first layer, which then reads unscaled features."""
        self.cancellation = standardising.fold_into(self.output if self.hidden is None else self.hidden)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Reorder the labels: new label i is the old label ``order[i]``."""
        fixed = self.output.out_features - len(order)
        rows = torch.tensor([*range(fixed), *(fixed + index for index in order)])
        self.output.weight.copy_(self.output.weight[rows])
        self.output.bias.copy_(self.output.bias[rows])


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert half precision to float32; keep wider types."""
    return logits.float() if logits.dtype.itemsize < 4 else logits


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
        layers: HeadLayers,
        *,
        num_labels: int,
        class_weights: ClassWeights | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(layers, num_labels=num_labels)
        self.class_weights, self.label_smoothing = class_weights, label_smoothing
        initial = [1.0] * num_labels if class_weights is None or class_weights == "balanced" else list(class_weights)
        self.register_buffer("weights_C", torch.tensor(initial), persistent=False)

    @classmethod
    @override
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: HeadLayers, *, pieces: Pieces) -> ClassificationHead:
        """Build the head; the task sets weights and smoothing."""
        assert isinstance(spec, ClassificationSpec)
        return cls(
            layers,
            num_labels=spec.num_labels,
            class_weights=spec.class_weights,
            label_smoothing=spec.label_smoothing,
        )

    def begin(self, targets: Targets[np.ndarray]) -> None:
        """Compute balanced label weights from the training examples, if requested."""
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


class TaggingHead(Head):
    """A softmax over labels for each word; the loss is the cross-entropy in nats summed over words with known labels.

    Outputs are the C logits of each word, from its tokens in ``pieces``: ``first`` (Devlin et al. 2019, section 5.3);
    ``last``, the only token that has seen the whole word in a causal encoder; or ``mean``, the mean of the logits of
    all its tokens. Without a hidden layer, these are the logits of the mean vector.
    """

    loss_name: ClassVar[str] = "tagging"
    per: ClassVar[Literal["sequence", "token"]] = "token"
    convex: ClassVar[bool] = True

    def __init__(self, layers: HeadLayers, *, num_labels: int, pieces: Pieces = "first") -> None:
        super().__init__(layers, num_labels=num_labels)
        self.pieces = pieces

    @classmethod
    @override
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: HeadLayers, *, pieces: Pieces) -> TaggingHead:
        return cls(layers, num_labels=spec.num_labels, pieces=pieces)

    def count(self, batch: TaskBatch) -> int:
        """Return the number of words with a known label."""
        return int((TagTargets.of(batch.host_batch.targets).tags.numpy() != NO_LABEL).sum())

    def rows(self, values: Tensor, batch: TaskBatch) -> Tensor:
        """Return the values of each word, (T, K) -> (W, K)."""
        words = TagTargets.of(batch.targets)
        first_W, counts_W = batch.target_starts_R + words.first, words.counts
        if self.pieces == "mean":
            return _word_means(values, first_W, counts_W)
        return values[first_W if self.pieces == "first" else first_W + counts_W - 1]

    @override
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        return functional.cross_entropy(logits, TagTargets.of(targets).tags, ignore_index=NO_LABEL, reduction="sum")


def _word_means(values_TC: Tensor, first_W: Tensor, counts_W: Tensor) -> Tensor:
    """Return the mean over the tokens of each word, (T, C) -> (W, C)."""
    num_tokens, num_words = len(values_TC), len(first_W)
    place_T = torch.arange(num_tokens, device=values_TC.device)
    row_T = torch.searchsorted(first_W, place_T, right=True)  # row 0 is for tokens before all words
    end_R = functional.pad(first_W + counts_W, (1, 0))
    inside_T = place_T < end_R[row_T]
    sums_RC = values_TC.new_zeros(num_words + 1, values_TC.shape[1])
    sums_RC = sums_RC.index_add(0, row_T, values_TC.masked_fill(~inside_T[:, None], 0.0))
    return sums_RC[1:] / counts_W[:, None]
