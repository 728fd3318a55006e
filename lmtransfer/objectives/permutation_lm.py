"""Permutation language modeling (XLNet): the loss; ``models.xlnet`` has the two streams and names the mask.

Shape legend: T tokens, M prediction positions, B sequences, D width, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.objectives.base import Encode, Objective, Softmax, output_positions_at
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.token_prediction import vocabulary_loss
from lmtransfer.training.learner import Loss


class PermutationLanguageModel(Objective):
    """Predicts chosen tokens one after another in a random order (Yang et al. 2019, sections 2.2 to 2.4).

    ``PermutationTargets`` chooses the tokens and their order. The output matrix is the token embedding, with a separate
    bias as in the published code.
    Losses: "plm", the cross entropy in nats summed over the chosen tokens; and "plm_accuracy".
    """

    name = "plm"
    title = "permuted tokens"
    directions = ("bidirectional",)
    output_positions = "masked"
    needs = ("order",)
    needs_from = "permutation"
    ties_embedding = True
    supports_contiguous_rows = True
    predicts = "masked"
    vocabulary_tensors = ("bias",)

    def __init__(self, *, weight: NonNegative = 1.0, num_sampled: Count | None = None) -> None:
        super().__init__(weight=weight)
        self.num_sampled = num_sampled

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        if not encoder.has_two_streams:
            raise ConfigError(
                f"objective=plm needs a model with two streams, but {type(encoder).__name__} has one stream: use "
                f"model=xlnet_laptop, or objective=mlm with this model"
            )
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return batch.num_targets

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        if "order" not in batch.per_token:
            raise ConfigError("objective=plm needs an order of the predictions: use objective/corruption=permutation")
        order_T, output_positions = batch.per_token["order"], _reads(batch)
        output = encode.with_recurrent_state(
            lambda recurrent_state: self.encoder.two_stream(
                batch.original, order_T=order_T, output_positions=output_positions, recurrent_state=recurrent_state
            )
        )
        count = batch.num_targets
        targets_M, weights_M = batch.targets_M[:count], batch.weights_M[:count]
        output_VE = self.tied_embedding.weight
        losses = vocabulary_loss(
            output.last, output_VE, self.bias, targets_M, weights_M, num_sampled=self.active_num_sampled
        )
        return self.loss_and_accuracy(*losses, count)

    @override
    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        return nn.functional.linear(hidden_TD, self.tied_embedding.weight, self.bias)

    @override
    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """Predict from a factorization order in which all [MASK] tokens come last, so that no query sees them."""
        order_T = (packed.tokens_T == mask_id).long()
        states_MD = self.encoder.two_stream(
            packed, order_T=order_T, output_positions=output_positions_at(packed, positions_M)
        ).last
        return [Softmax(states_MD, self.tied_embedding.weight, self.bias)]


def _reads(batch: PretrainingBatch) -> OutputPositions:
    """Return the positions to predict without unused places, which would make the query stream slower."""
    count, edges = batch.num_targets, np.append(0, np.cumsum(batch.original.lengths))
    counts = OutputPositions.of(batch.host_batch.positions_M.numpy()[:count], edges).counts
    return OutputPositions(batch.positions_M[:count], counts)
