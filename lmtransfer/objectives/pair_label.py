"""Labels of text pairs, predicted from the pooler's output: next sentence (BERT) and sentence order (ALBERT)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class PairLabel(Objective):
    """A two-way softmax on the pooler's output, with one prediction per row.

    A subclass defines ``name``, which is also the row label, and ``model_with_pooler``, a model to recommend.

    Losses: "<name>", the cross entropy in nats summed over rows; and "<name>_accuracy".
    """

    model_with_pooler: ClassVar[str]
    directions = ("bidirectional",)
    output_positions = "starts"
    head_reads = "starts"
    uses_pooler = True

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        if encoder.pooler is None:
            raise ConfigError(
                f"objective={self.name} needs a model with a pooler, but {type(encoder).__name__} has no pooler: "
                f"use a model such as {self.model_with_pooler}, or objective=mlm"
            )
        self.classifier = nn.Linear(encoder.dim, 2)
        self.classifier.apply(truncated_normal_)

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return batch.inputs.num_real

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        pooler = self.encoder.pooler
        assert pooler is not None
        first_BD = batch.read("starts", encode(batch.inputs, batch.output_positions))
        logits = self.classifier(pooler(first_BD))
        labels = batch.labels[self.name]
        if logits.dtype.itemsize < 4:
            logits = logits.float()
        total = nn.functional.cross_entropy(logits, labels, reduction="sum")
        hits = (logits.detach().argmax(-1) == labels).sum()
        return self.loss_and_accuracy(total, hits.float(), self.count(batch))

    @override
    def text_logits(self, pooled_BD: Tensor) -> Tensor:
        return self.classifier(pooled_BD)


class NextSentencePrediction(PairLabel):
    """Predicts whether text B follows text A (Devlin et al. 2019, section 3.1).

    Label 0 means that B follows A, 1 that B is from another document. Losses: "nsp", the cross entropy in nats summed
    over rows; and "nsp_accuracy".
    """

    name = "nsp"
    title = "next sentence"
    label = "nsp"
    label_rows = "sentence_pairs"
    model_with_pooler = "bert_mini"


class SentenceOrderPrediction(PairLabel):
    """Predicts whether two consecutive texts have been swapped (Lan et al. 2020, section 3.1).

    Label 0 means that the texts are in order, 1 that they are swapped. Losses: "sop", the cross entropy in nats summed
    over rows; and "sop_accuracy".
    """

    name = "sop"
    title = "sentence order"
    label = "sop"
    label_rows = "ordered_pairs"
    model_with_pooler = "albert_lite"
