"""What objectives share that tell a label of two texts from the encoder's pooler."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.layers.attention.self_attention import truncated_normal_
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class PairLabel(nn.Module):
    """A two-way softmax over the encoder's pooler, one decision a row.

    A subclass gives its ``name``, which is also the label of its rows, and a ``model_with_pooler`` to recommend.
    Losses: its name, the cross entropy in nats summed over rows; "<name>_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name: str
    label: str | None
    model_with_pooler: ClassVar[str]
    directions: tuple[Direction, ...] = ("bidirectional",)
    reads: Read = "starts"
    uses_pooler = True

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        if encoder.pooler is None:
            raise ConfigError(
                f"objective={self.name} reads the encoder's pooler, and {type(encoder).__name__} has none: "
                f"use a model such as {self.model_with_pooler}, or objective=mlm"
            )
        self.classifier = nn.Linear(encoder.dim, 2)
        self.classifier.apply(truncated_normal_)
        self._encoder = (encoder,)  # a tuple, so that the pooler's weights are not this module's a second time

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; rows."""
        rows = batch.inputs.num_real
        return {self.name: rows, f"{self.name}_accuracy": rows}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        pooler = self._encoder[0].pooler
        assert pooler is not None
        first_BD = batch.read("starts", encode(batch.inputs, batch.reads))
        logits = self.classifier(pooler(first_BD))
        labels, rows = batch.labels[self.name], batch.inputs.num_real
        if logits.dtype.itemsize < 4:
            logits = logits.float()
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        hits = (logits.detach().argmax(-1) == labels).sum()
        return {self.name: Loss(total, rows, self.weight), f"{self.name}_accuracy": Loss(hits.float(), rows, 0.0)}
