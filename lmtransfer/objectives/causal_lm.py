"""Language modelling, left to right."""

from __future__ import annotations

from lmtransfer.models.base import Direction
from lmtransfer.objectives.one_way_lm import OneWayLanguageModel


class LanguageModel(OneWayLanguageModel):
    """Predicts each token of a row from those before it (Radford et al. 2018, section 3.1).

    The output matrix is the token embedding, without a bias as in GPT-2. The row's last token has nothing to predict,
    unless rows are contiguous and the next one's first token is known.
    Losses: "lm", the cross entropy in nats summed over predicted tokens; "lm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "lm"
    directions: tuple[Direction, ...] = ("causal",)
    neighbour = "next_token"
