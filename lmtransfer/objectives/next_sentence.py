"""Next sentence prediction (BERT)."""

from __future__ import annotations

from lmtransfer.objectives.pair_label import PairLabel


class NextSentencePrediction(PairLabel):
    """Tells from the encoder's pooler whether B follows A (Devlin et al. 2019, section 3.1).

    Label 0 means that it does, 1 that B is from another document. Losses: "nsp", the cross entropy of a two-way
    softmax in nats summed over rows; "nsp_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "nsp"
    label = "nsp"
    model_with_pooler = "bert_mini"
