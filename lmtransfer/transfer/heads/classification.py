"""One of C labels a sequence.

Shape legend: B sequences, E width of a composed vector, C labels.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.heads.base import Per
from lmtransfer.transfer.heads.layers import Activation, HeadLayers, at_least_float32


class ClassificationHead(HeadLayers):
    """A softmax over labels; the loss is the cross-entropy in nats summed over sequences.

    Targets are [label], outputs the C logits.

    Args:
        input_dim: E.
        num_labels: C.
        hidden_dim: width of a hidden layer; None: none.
        activation: of the hidden layer.
        dropout: probability of dropping an input feature of the output layer.
        hidden_dropout: the same for the hidden layer.
    """

    loss_name = "classification"
    per: Per = "sequence"

    def __init__(
        self,
        *,
        input_dim: int,
        num_labels: int,
        hidden_dim: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            input_dim=input_dim,
            output_dim=num_labels,
            hidden_dim=hidden_dim,
            activation=activation,
            dropout=dropout,
            hidden_dropout=hidden_dropout,
        )

    def count(self, batch: TaskBatch) -> int:
        """Sequences."""
        return len(batch.targets_RK)

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """See ``Head``; every label must be known.

        Args:
            logits: (B, C).
            batch: with targets.
        """
        total = functional.cross_entropy(at_least_float32(logits), batch.targets_RK[:, 0], reduction="sum")
        return Loss(sum=total, count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """See ``Head``; (B, C)."""
        return logits.float()
