"""Masked language modeling (BERT).

Shape legend: M prediction positions, V vocabulary, D width, E width of the token embedding.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative, Positive
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import Activation, activation_module, truncated_normal_
from lmtransfer.objectives.base import Encode, Read, Softmax, TokenHead, output_positions_at
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.token_prediction import TokenPrediction
from lmtransfer.training.learner import Loss


class MaskedLanguageModel(TokenPrediction):
    """Predicts the masked tokens only (Devlin et al. 2019, section 3.1).

    The head is BERT's: a dense layer, an activation and a LayerNorm, then the output matrix and a separate bias. The
    output matrix is the token embedding unless ``tie_output`` is False. As in the original, padding rows of the
    vocabulary are part of the softmax, but are never targets.

    With ``predict="next"``, the state before a masked token predicts the token (masked next-token prediction:
    Charpentier & Samuel 2024, arXiv 2410.24159, section 2), so that a language model in the same run can share the
    head.

    Losses: "mlm", the cross entropy in nats summed over masked tokens; and "mlm_accuracy".

    Args:
        predict: the state that predicts a masked token: "same", at the masked position, or "next", just before it.
    """

    name = "mlm"
    title = "masked tokens"
    directions = ("bidirectional",)
    output_positions: Read = "masked"
    supports_mixed_attention = True
    published_arguments = MappingProxyType({**TokenPrediction.published_arguments, "predict": "same"})
    masked_loss: str | None = "mlm"
    predicts = "masked"
    vocabulary_tensors = ("bias",)

    def __init__(
        self,
        *,
        weight: NonNegative = 1.0,
        activation: Activation = "gelu",
        norm_eps: Positive = 1e-12,
        predict: Literal["same", "next"] = "same",
        tie_output: bool = True,
        num_sampled: Count | None = None,
    ) -> None:
        super().__init__(weight=weight, tie_output=tie_output, num_sampled=num_sampled)
        self.norm_eps = norm_eps
        self.reads_before = predict == "next"
        if self.reads_before:
            self.output_positions = "all"
        self.activation = activation_module(activation)

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        width = self.tied_embedding.embedding_dim
        self.dense = nn.Linear(encoder.dim, width)
        self.norm = nn.LayerNorm(width, eps=self.norm_eps)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.dense.apply(truncated_normal_)

    @property
    @override
    def output_bias(self) -> Tensor:
        return self.bias

    @override
    def transform(self, hidden_MD: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden_MD)))

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return batch.num_targets

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        output = encode(batch.inputs, batch.output_positions)
        states_MD = output.last[batch.positions_M - 1] if self.reads_before else batch.read("masked", output)
        return self.loss_and_accuracy(*self.score(states_MD, batch.targets_M, batch.weights_M), batch.num_targets)

    @override
    def next_token_head(self) -> TokenHead | None:
        return self if self.reads_before else None

    @override
    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        return nn.functional.linear(self.transform(hidden_TD), self.output_embedding.weight, self.bias)

    @override
    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        places_M = positions_M - 1 if self.reads_before else positions_M
        return [self.softmax(self.encoder(packed, output_positions=output_positions_at(packed, places_M)).last)]
