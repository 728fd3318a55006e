"""Language modelling, left to right.

Shape legend: T tokens of a packed batch, D width.
"""

from __future__ import annotations

import torch
from torch import nn

from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction, tied_embedding
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class LanguageModel(nn.Module):
    """Predicts each token of a row from those before it (Radford et al. 2018, section 3.1).

    The output matrix is the token embedding, without a bias as in GPT-2. The row's last token has nothing to predict,
    unless rows are contiguous and the next one's first token is known.
    Losses: "lm", the cross entropy in nats summed over predicted tokens; "lm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "lm"
    directions: tuple[Direction, ...] = ("causal",)
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
        """See ``Objective``; tokens less one a row."""
        count = batch.original.num_tokens
        if "next_token" not in batch.labels:
            count -= batch.original.num_real
        return {"lm": count, "lm_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        packed, count = batch.original, self.counts(batch)["lm"]
        hidden_TD = encode(packed, None).last
        targets_T = packed.tokens_T.roll(-1)
        weights_T = torch.ones(len(targets_T), device=targets_T.device)
        ends_B = packed.cu_seqlens[1:].long() - 1
        if "next_token" in batch.labels:
            targets_T[ends_B[: packed.num_real]] = batch.labels["next_token"]
        else:
            weights_T[ends_B] = 0.0
        weights_T[packed.num_tokens :] = 0.0  # filler
        output_VD = tied_embedding(self, self._encoder[0]).weight
        total, hits_T = cross_entropy_sum(hidden_TD, output_VD, None, targets_T, weights_T)
        return {
            "lm": Loss(total, count, self.weight),
            "lm_accuracy": Loss((hits_T * weights_T).sum(), count, 0.0),
        }
