"""The span-boundary objective (SpanBERT).

Shape legend: M prediction positions, D width, P width of a position, E width of the token embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative, Positive
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Activation, activation_module, truncated_normal_
from lmtransfer.models.layers.cross_entropy import cross_entropy_sum
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class SpanBoundaryObjective(Objective):
    """Predicts each token of a masked span from the two tokens next to the span (Joshi et al. 2020, section 3.2).

    The states of the two tokens and an embedding of the target's distance from the left token pass through two dense
    layers, each with an activation and a LayerNorm. The output matrix is the token embedding, with a separate bias.

    Losses: "sbo", the cross entropy in nats summed over masked tokens; and "sbo_accuracy".

    Where we differ from the published code: targets beyond the last position share the last position embedding; the
    published code omits these targets.
    """

    name = "sbo"
    title = "spans from their boundaries"
    directions = ("bidirectional",)
    ties_embedding = True
    vocabulary_tensors = ("bias",)
    needs = ("left", "right")
    needs_from = "spans"

    def __init__(
        self,
        *,
        weight: NonNegative = 1.0,
        position_dim: Count = 200,
        num_positions: Count = 20,
        activation: Activation = "gelu",
        norm_eps: Positive = 1e-12,
    ) -> None:
        super().__init__(weight=weight)
        self.norm_eps = norm_eps
        self.position = nn.Embedding(num_positions, position_dim)
        self.activation = activation_module(activation)

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        width = self.tied_embedding.embedding_dim
        self.dense = nn.Linear(2 * encoder.dim + self.position.embedding_dim, encoder.dim)
        self.norm = nn.LayerNorm(encoder.dim, eps=self.norm_eps)
        self.output = nn.Linear(encoder.dim, width)
        self.output_norm = nn.LayerNorm(width, eps=self.norm_eps)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.apply(truncated_normal_)

    def transform(self, left_MD: Tensor, right_MD: Tensor, place_M: Tensor) -> Tensor:
        """Compute the input of the output matrix, (M, E).

        Args:
            place_M: distance of each target from the left token, starting at 1, int64.
        """
        position_MP = self.position((place_M - 1).clamp(0, self.position.num_embeddings - 1))
        joined = torch.cat([left_MD, right_MD, position_MP.to(left_MD.dtype)], dim=1)
        hidden_MD = self.norm(self.activation(self.dense(joined)))
        return self.output_norm(self.activation(self.output(hidden_MD)))

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return batch.num_targets

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        last_TD = encode(batch.inputs, batch.output_positions).last
        left_M, right_M = batch.per_target["left"], batch.per_target["right"]
        hidden_ME = self.transform(
            last_TD.index_select(0, batch.positions_M - left_M),
            last_TD.index_select(0, batch.positions_M + right_M),
            left_M,
        )
        output_VE = self.tied_embedding.weight
        total, hits_M = cross_entropy_sum(hidden_ME, output_VE, self.bias, batch.targets_M, batch.weights_M)
        return self.loss_and_accuracy(total, (hits_M * batch.weights_M).sum(), batch.num_targets)
