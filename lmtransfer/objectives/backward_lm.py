"""Language modelling, right to left."""

from __future__ import annotations

from lmtransfer.models.base import Direction
from lmtransfer.objectives.one_way_lm import OneWayLanguageModel


class BackwardLanguageModel(OneWayLanguageModel):
    """Predicts each token of a row from those after it: ``LanguageModel`` for encoders that read right to left.

    Losses: "backward_lm", the cross entropy in nats summed over predicted tokens; "backward_lm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "backward_lm"
    directions: tuple[Direction, ...] = ("backward",)
    neighbour = "previous_token"
