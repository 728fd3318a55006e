"""Sentence order prediction (ALBERT)."""

from __future__ import annotations

from lmtransfer.objectives.pair_label import PairLabel


class SentenceOrderPrediction(PairLabel):
    """Tells from the encoder's pooler whether two consecutive texts were swapped (Lan et al. 2020, section 3.1).

    Label 0 means that they stand in order, 1 that they are swapped. Losses: "sop", the cross entropy of a two-way
    softmax in nats summed over rows; "sop_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "sop"
    label = "sop"
    model_with_pooler = "albert_lite"
