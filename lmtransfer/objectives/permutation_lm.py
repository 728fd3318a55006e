"""Permutation language modelling (XLNet).

Shape legend: T tokens, M prediction positions, B sequences, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.models.base import Direction, Encoder, Reads
from lmtransfer.objectives.base import Encode, Read, check_direction, tied_embedding
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class PermutationLanguageModel(nn.Module):
    """Predicts the chosen tokens one after the other, in a random order (Yang et al. 2019, sections 2.2 to 2.4).

    The choice and the order are those of ``PermutationTargets``. The output matrix is the token embedding, with a bias
    of its own as in the published code.
    Losses: "plm", the cross entropy in nats summed over the chosen tokens; "plm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
    """

    name = "plm"
    directions: tuple[Direction, ...] = ("bidirectional",)
    reads: Read = "masked"
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
        if not encoder.has_two_streams:
            raise ConfigError(
                f"objective=plm needs a model with two streams, and {type(encoder).__name__} has one: use "
                f"model=xlnet_laptop, or objective=mlm with this model"
            )
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self._encoder = (encoder,)  # a tuple, so that the encoder's weights are not this module's a second time

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; chosen tokens."""
        return {"plm": batch.num_targets, "plm_accuracy": batch.num_targets}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``.

        Raises:
            ConfigError: the corruption gives no order.
        """
        if "order" not in batch.per_token:
            raise ConfigError("objective=plm predicts in an order: use objective/corruption=permutation")
        order_T, reads = batch.per_token["order"], _reads(batch)
        encoder = self._encoder[0]
        output = encode.with_carry(
            lambda carry: encoder.two_stream(batch.original, order_T=order_T, reads=reads, carry=carry)
        )
        output_VD = tied_embedding(self, self._encoder[0]).weight
        count = batch.num_targets
        targets_M, weights_M = batch.targets_M[:count], batch.weights_M[:count]
        total, hits_M = cross_entropy_sum(output.last, output_VD, self.bias, targets_M, weights_M)
        return {
            "plm": Loss(total, count, self.weight),
            "plm_accuracy": Loss(hits_M.sum().to(total.dtype), count, 0.0),
        }


def _reads(batch: PretrainingBatch) -> Reads:
    """The positions to predict, without spare places: a query stream costs as much as its longest row."""
    positions_M = batch.positions_M[: batch.num_targets]
    sequence_M = torch.bucketize(positions_M, batch.original.cu_seqlens[1:].long(), right=True)
    counts = torch.bincount(sequence_M, minlength=batch.original.num_sequences)
    return Reads(positions_M, tuple(counts.tolist()))
