"""Sentence order prediction (ALBERT)."""

from __future__ import annotations

from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.layers.self_attention import truncated_normal_
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class SentenceOrderPrediction(nn.Module):
    """Tells from the encoder's pooler whether two consecutive texts were swapped (Lan et al. 2020, section 3.1).

    Label 0 means that they stand in order, 1 that they are swapped. Losses: "sop", the cross entropy of a two-way
    softmax in nats summed over rows; "sop_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "sop"
    directions: tuple[Direction, ...] = ("bidirectional",)
    reads: Read = "starts"
    label: str | None = "sop"
    uses_pooler = True

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        if encoder.pooler is None:
            raise ConfigError(
                f"objective=sop reads the encoder's pooler, and {type(encoder).__name__} has none: "
                f"use a model such as albert_lite, or objective=mlm"
            )
        self.classifier = nn.Linear(encoder.dim, 2)
        self.classifier.apply(truncated_normal_)
        self._encoder = (encoder,)  # a tuple, so that the pooler's weights are not this module's a second time

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; rows."""
        rows = batch.inputs.num_real
        return {"sop": rows, "sop_accuracy": rows}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        pooler = self._encoder[0].pooler
        assert pooler is not None
        first_BD = batch.read("starts", encode(batch.inputs, batch.reads))
        logits = self.classifier(pooler(first_BD))
        labels, rows = batch.labels["sop"], batch.inputs.num_real
        if logits.dtype.itemsize < 4:
            logits = logits.float()
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        hits = (logits.detach().argmax(-1) == labels).sum()
        return {"sop": Loss(total, rows, self.weight), "sop_accuracy": Loss(hits.float(), rows, 0.0)}
