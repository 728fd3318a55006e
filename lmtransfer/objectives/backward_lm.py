"""Language modelling, right to left.

Shape legend: T tokens of a packed batch, D width.
"""

from __future__ import annotations

from torch import nn

from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction, tied_embedding
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.neighbours import num_neighbours, previous_tokens
from lmtransfer.training.learner import Loss


class BackwardLanguageModel(nn.Module):
    """Predicts each token of a row from those after it: ``LanguageModel`` for encoders that read right to left.

    The output matrix is the token embedding, without a bias.
    Losses: "backward_lm", the cross entropy in nats summed over predicted tokens; "backward_lm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "backward_lm"
    directions: tuple[Direction, ...] = ("backward",)
    reads: Read = "all"
    label: str | None = None
    uses_pooler = False

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        tied_embedding(self, encoder)
        self._encoder = (encoder,)  # a tuple, so that the encoder's weights are not this module's a second time

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; tokens, less one a row where the one before it is unknown."""
        count = num_neighbours(batch, "previous_token")
        return {"backward_lm": count, "backward_lm_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        targets_T, weights_T = previous_tokens(batch)
        output_VD = tied_embedding(self, self._encoder[0]).weight
        hidden_TD = encode(batch.original, None).last
        total, hits_T = cross_entropy_sum(hidden_TD, output_VD, None, targets_T, weights_T)
        count = num_neighbours(batch, "previous_token")
        return {
            "backward_lm": Loss(total, count, self.weight),
            "backward_lm_accuracy": Loss((hits_T * weights_T).sum(), count, 0.0),
        }
