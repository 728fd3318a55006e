"""What every head promises.

Shape legend: T real tokens of a packed batch, B sequences, E width of what a head sees, C logits, R rows of targets,
K columns of outputs.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Loss

#: What a head has logits for: each sequence, or each token.
Per = Literal["sequence", "token"]


class Head(Protocol):
    """Vectors in, logits out; it knows what its targets mean (always an ``nn.Module``).

    Attributes:
        loss_name: its loss's name in logs.
        per: whether it sees one vector a sequence, (B, E), or one a real token, (T, E), sequences end to end.
    """

    loss_name: str
    per: Per

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits, (B, E) -> (B, C) or (T, E) -> (T, C); half precision under autocast."""
        ...

    def count(self, batch: TaskBatch) -> int:
        """What the loss is divided by; known before the forward pass."""
        ...

    def loss(self, logits: Tensor, batch: TaskBatch) -> Loss:
        """The loss, at least float32; needs gold answers.

        Args:
            logits: what the head gave for this batch.
            batch: with targets.
        """
        ...

    def outputs(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """What the logits say, float32, (R, K): row r answers the batch's row r of targets; no gold answer is read.

        Args:
            logits: what the head gave for this batch.
            batch: says what is asked.
        """
        ...
