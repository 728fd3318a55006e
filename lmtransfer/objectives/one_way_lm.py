"""What language models of one direction share.

Shape legend: T tokens of a packed batch, V vocabulary, D width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction, tied_embedding
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.neighbours import Neighbour, neighbours, num_neighbours
from lmtransfer.training.learner import Loss


class OneWayLanguageModel(nn.Module):
    """Predicts a neighbour of each token; the output matrix is the token embedding, without a bias.

    A subclass gives its ``name``, its ``directions`` and the ``neighbour`` that it predicts.
    Losses: its name, the cross entropy in nats summed over predicted tokens; "<name>_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name: str
    directions: tuple[Direction, ...]
    neighbour: ClassVar[Neighbour]
    reads: Read = "all"
    label: str | None = None
    uses_pooler = False
    goes_on = True  # may read rows that go on from one another

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        tied_embedding(self, encoder)
        self._encoder = (encoder,)  # a tuple, so that the encoder's weights are not this module's a second time

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; tokens, less one a row where its neighbour beyond the edge is unknown."""
        count = num_neighbours(batch, self.neighbour)
        return {self.name: count, f"{self.name}_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        targets_T, weights_T = neighbours(batch, self.neighbour)
        output_VD = tied_embedding(self, self._encoder[0]).weight
        hidden_TD = encode(batch.original, None).last
        total, hits_T = cross_entropy_sum(hidden_TD, output_VD, None, targets_T, weights_T)
        count = num_neighbours(batch, self.neighbour)
        return {
            self.name: Loss(total, count, self.weight),
            f"{self.name}_accuracy": Loss((hits_T * weights_T).sum(), count, 0.0),
        }
