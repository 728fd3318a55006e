"""What every head promises, and the layers that it is made of.

Shape legend: T real tokens of a packed batch, B sequences, N of either, E width of what a head sees, C logits, R rows
of targets, K columns of outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmtransfer.layers.dropout import Dropout
from lmtransfer.models.base import Encoder
from lmtransfer.tasks.heads import HeadSpec, Targets
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.standardising import Standardising

#: Standard deviation of new weights, as in the published BERT.
INITIAL_DEVIATION = 0.02

#: Which tokens of a word speak for it.
Pieces = Literal["first", "last", "mean"]
Activation = Literal["tanh", "gelu", "relu"]
_ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
}


class Head(nn.Module):
    """Vectors in, logits out; it knows what its targets mean.

    Dropout and a linear layer (Devlin et al. 2019, section 4.1), with an optional hidden layer before them. Weights
    start normal with deviation 0.02, biases at 0.

    Args:
        input_dim: E.
        num_labels: labels (or kinds of answer) that it tells apart.
        hidden_dim: width of a hidden layer; None: none.
        activation: of the hidden layer.
        dropout: probability of dropping an input feature of the output layer.
        hidden_dropout: the same for the hidden layer.

    Attributes:
        loss_name: its loss's name in logs.
        per: whether it sees one vector a sequence, (B, E), or one a real token, (T, E), sequences end to end.
        graph_outputs: names of what an exported graph gives: all its logits, or each by itself; none: it has no graph.
        cancelling: the largest sum of magnitudes that cancel in its first layer, where a scale was folded into it: what
            rounding there is to be measured by.
    """

    loss_name: ClassVar[str]
    per: ClassVar[Literal["sequence", "token"]]

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
        self.cancelling = 0.0
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
        """See above."""
        return ("logits",)

    @classmethod
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: Mapping[str, Any], *, pieces: Pieces) -> Head:
        """The head that a task asks for.

        Args:
            spec: what the task asks for.
            encoder: what it stands on.
            layers: the arguments of ``Head`` but for ``num_labels``.
            pieces: which tokens of a word speak for it.
        """
        return cls(num_labels=spec.num_labels, **layers)

    @property
    def num_logits(self) -> int:
        """C; those of the labels come last."""
        return self.num_labels

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits, (N, E) -> (N, C); half precision under autocast."""
        if self.hidden is not None:
            hidden = self.activate(self.hidden(self.hidden_dropout(hidden)))
        return self.output(self.dropout(hidden))

    @abstractmethod
    def count(self, batch: TaskBatch) -> int:
        """What the loss is divided by; known before the forward pass."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """The loss, at least float32; needs gold answers.

        Args:
            logits: what the head gave for this batch.
            batch: with targets.
        """

    @abstractmethod
    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """What the logits say, float32, (R, K): row r answers the batch's row r of targets; no gold answer is read.

        Args:
            logits: what the head gave for this batch.
            batch: says what is asked.
        """

    def begin(self, targets: Targets[np.ndarray]) -> None:
        """Learn of the training part's gold answers what a head has to know before its first step.

        Args:
            targets: every row of it.
        """

    def fold(self, standardising: Standardising) -> None:
        """Put mean and deviation of features into the first layer, which then says the same of them as they are."""
        self.cancelling = standardising.fold_into(self.output if self.hidden is None else self.hidden)

    @torch.no_grad()
    def reorder(self, order: Sequence[int]) -> None:
        """Let label i be what was label ``order[i]``."""
        fixed = self.output.out_features - len(order)
        rows = torch.tensor([*range(fixed), *(fixed + place for place in order)])
        self.output.weight.copy_(self.output.weight[rows])
        self.output.bias.copy_(self.output.bias[rows])


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision as float32, and anything wider as it is."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
