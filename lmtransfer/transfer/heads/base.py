"""The interface of heads, and their layers.

Shape legend: T real tokens of a packed batch, B sequences, N tokens or sequences, E width of a head's input, C logits,
R rows of targets, K columns of outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Dropout
from lmtransfer.tasks.heads import HeadSpec, Targets
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.standardizer import Standardizer

#: Standard deviation of new weights, as in the published BERT.
INITIAL_DEVIATION = 0.02

#: Which tokens of a word determine its answer.
Pieces = Literal["first", "last", "mean"]
Activation = Literal["tanh", "gelu", "relu"]
_ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
}


class Head(nn.Module):
    """The base class of heads, which turn vectors into logits and compute the loss and the answers.

    A head is dropout and a linear layer (Devlin et al. 2019, section 4.1), with an optional hidden layer before them.
    Weights are initialized from a normal distribution with deviation 0.02, biases with 0.

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

    def __init__(
        self,
        *,
        input_dim: int,
        num_labels: int = 0,
        hidden_dim: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.cancellation = 0.0
        self.hidden = None if hidden_dim is None else nn.Linear(input_dim, hidden_dim)
        self.activate = _ACTIVATE[activation]
        self.hidden_dropout = Dropout(hidden_dropout)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(input_dim if hidden_dim is None else hidden_dim, self.num_logits)
        for layer in (self.hidden, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
                nn.init.zeros_(layer.bias)

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of an exported graph; see the class."""
        return ("logits",)

    @classmethod
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: Mapping[str, Any], *, pieces: Pieces) -> Head:
        """Build the head for a task; ``layers`` has the arguments of ``Head`` except ``num_labels``."""
        return cls(num_labels=spec.num_labels, **layers)

    @property
    def num_logits(self) -> int:
        """C, the number of logits, with the labels' logits last."""
        return self.num_labels

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits, (N, E) -> (N, C); half precision under autocast."""
        if self.hidden is not None:
            hidden = self.activate(self.hidden(self.hidden_dropout(hidden)))
        return self.output(self.dropout(hidden))

    @abstractmethod
    def count(self, batch: TaskBatch) -> float:
        """Return the divisor of the loss, which is known before the forward pass."""

    def rows(self, values: Tensor, batch: TaskBatch) -> Tensor:
        """Return the values for each target row of the batch, (N, K) -> (R, K); linear in the values."""
        return values

    @abstractmethod
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        """Return the summed loss of rows, convex in the logits (R, K); requires gold answers."""

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """Return the loss of a batch's logits, at least float32; requires gold answers."""
        rows = self.rows(at_least_float32(logits), batch)
        return Loss(sum=self.row_loss(rows, batch.targets), count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the outputs, float32, (R, K): row r answers target row r; gold answers are not used."""
        return self.rows(at_least_float32(logits), batch).float()

    def begin(self, targets: Targets[np.ndarray]) -> None:
        """Initialize the head from the gold answers of the training part, before the first step."""

    def fold(self, standardising: Standardizer) -> None:
        """Fold the features' mean and deviation into the first layer, which then reads unscaled features."""
        self.cancellation = standardising.fold_into(self.output if self.hidden is None else self.hidden)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Reorder the labels: new label i is old label ``order[i]``."""
        fixed = self.output.out_features - len(order)
        rows = torch.tensor([*range(fixed), *(fixed + place for place in order)])
        self.output.weight.copy_(self.output.weight[rows])
        self.output.bias.copy_(self.output.bias[rows])


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert half precision to float32; keep wider types."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
