"""One number a sequence.

Shape legend: B sequences, E width of a composed vector.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.heads.base import Per
from lmtransfer.transfer.heads.layers import Activation, HeadLayers, at_least_float32


class RegressionHead(HeadLayers):
    """A linear layer to a number; the loss is the squared error summed over sequences.

    Targets are [score], float32; outputs the number, (B, 1).

    Args:
        input_dim: E.
        hidden_dim: width of a hidden layer; None: none.
        activation: of the hidden layer.
        dropout: probability of dropping an input feature of the output layer.
        hidden_dropout: the same for the hidden layer.
    """

    loss_name = "regression"
    per: Per = "sequence"

    def __init__(
        self,
        *,
        input_dim: int,
        hidden_dim: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            input_dim=input_dim,
            output_dim=1,
            hidden_dim=hidden_dim,
            activation=activation,
            dropout=dropout,
            hidden_dropout=hidden_dropout,
        )

    def count(self, batch: TaskBatch) -> int:
        """Sequences."""
        return len(batch.targets_RK)

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """See ``Head``; every score must be known.

        Args:
            logits: (B, 1).
            batch: with targets.
        """
        found = at_least_float32(logits)
        total = functional.mse_loss(found, batch.targets_RK.to(found.dtype), reduction="sum")
        return Loss(sum=total, count=self.count(batch))

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """See ``Head``; (B, 1)."""
        return logits.float()
