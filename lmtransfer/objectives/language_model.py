"""Language modelling in one direction, left to right or right to left; and the neighbours that it predicts.

Shape legend: T tokens of a packed batch, M positions, V vocabulary, D width.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.objectives.base import Encode, reads_at
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.softmax import Softmax
from lmtransfer.objectives.token_prediction import TokenPrediction
from lmtransfer.training.learner import Loss

#: The token after a token or the one before it; also the label of contiguous rows that holds the one beyond their edge.
Neighbour = Literal["next_token", "previous_token"]


class OneWayLanguageModel(TokenPrediction):
    """Predicts a neighbour of each token; the output matrix is the token embedding or its own, without a bias.

    A subclass gives its ``name``, its ``directions`` and the ``neighbour`` that it predicts.
    Losses: its name, the cross entropy in nats summed over predicted tokens; "<name>_accuracy" beside it.

    Args:
        weight: of the loss in the total.
        tie_output: whether the output matrix is the token embedding.
    """

    neighbour: ClassVar[Neighbour]
    goes_on = True
    predicts = "unmasked"

    def count(self, batch: PretrainingBatch) -> int:
        """See ``Objective``; tokens, less one a row where its neighbour beyond the edge is unknown."""
        return num_neighbours(batch, self.neighbour)

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        targets_T, weights_T = neighbours(batch, self.neighbour)
        hidden_TD = encode(batch.original, None).last
        total, hits_T = cross_entropy_sum(hidden_TD, self.output_embedding.weight, None, targets_T, weights_T)
        return self.loss_and_accuracy(total, (hits_T * weights_T).sum(), self.count(batch))

    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """See ``Objective``: the state before a token (or the one after it) predicts it."""
        step = -1 if self.neighbour == "next_token" else 1
        states_MD = self.encoder(packed, reads=reads_at(packed, positions_M + step)).last
        return [Softmax(states_MD, self.output_embedding.weight)]


class LanguageModel(OneWayLanguageModel):
    """Predicts each token of a row from those before it (Radford et al. 2018, section 3.1).

    The output matrix is the token embedding, without a bias as in GPT-2. The row's last token has nothing to predict,
    unless rows are contiguous and the next one's first token is known.
    Losses: "lm", the cross entropy in nats summed over predicted tokens; "lm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
        tie_output: whether the output matrix is the token embedding.
    """

    name = "lm"
    title = "next token"
    directions = ("causal",)
    neighbour = "next_token"

    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        """See ``Objective``."""
        # With a bias it is one operator of ONNX that transposes, and the tied table is written once.
        weight_VD = self.output_embedding.weight
        return nn.functional.linear(hidden_TD, weight_VD, hidden_TD.new_zeros(len(weight_VD)))


class BackwardLanguageModel(OneWayLanguageModel):
    """Predicts each token of a row from those after it: ``LanguageModel`` for encoders that read right to left.

    Losses: "backward_lm", the cross entropy in nats summed over predicted tokens; "backward_lm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
        tie_output: whether the output matrix is the token embedding.
    """

    name = "backward_lm"
    title = "previous token"
    directions = ("backward",)
    neighbour = "previous_token"


def num_neighbours(batch: PretrainingBatch, neighbour: Neighbour) -> int:
    """How many tokens have a known neighbour: all but one a row, or all where the one beyond the edge is known."""
    return batch.original.num_tokens - (0 if neighbour in batch.labels else batch.original.num_real)


def neighbours(batch: PretrainingBatch, neighbour: Neighbour) -> tuple[Tensor, Tensor]:
    """The id that follows (or precedes) each token, int64 (T,); and 1 where it is known and counts, else 0, (T,)."""
    packed = batch.original
    if neighbour == "next_token":
        shift, edges = -1, packed.cu_seqlens[1:].long() - 1
    else:
        shift, edges = 1, packed.cu_seqlens[:-1].long()
    targets_T = packed.tokens_T.roll(shift)
    weights_T = torch.ones(len(targets_T), device=targets_T.device)
    if neighbour in batch.labels:
        targets_T[edges[: packed.num_real]] = batch.labels[neighbour]
    else:
        weights_T[edges] = 0.0
    weights_T[packed.num_tokens :] = 0.0  # filler
    return targets_T, weights_T
