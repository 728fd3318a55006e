"""Masked language modelling (BERT).

Shape legend: M prediction positions, V vocabulary, D width, E width of the token embedding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.layers.feed_forward import Activation, activation_module
from lmtransfer.layers.initialisation import truncated_normal_
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Encode, reads_at
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.softmax import Softmax
from lmtransfer.objectives.token_prediction import TokenPrediction
from lmtransfer.training.learner import Loss


class MaskedLanguageModel(TokenPrediction):
    """Predicts the hidden tokens (Devlin et al. 2019, section 3.1), at their positions only.

    The head is BERT's: a dense layer, its activation and a LayerNorm, then the output matrix, which is the token
    embedding unless untied, with a bias of its own. Padding rows of the vocabulary are in the softmax, as in the
    original, and are never targets.
    Losses: "mlm", the cross entropy in nats summed over hidden tokens; "mlm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
        activation: of the dense layer.
        norm_eps: LayerNorm's epsilon.
        tie_output: whether the output matrix is the token embedding.
    """

    name = "mlm"
    title = "masked tokens"
    directions = ("bidirectional",)
    reads = "masked"
    masked_loss = "mlm"
    predicts = "masked"
    vocabulary_sized = ("bias",)

    def __init__(
        self,
        *,
        weight: float = 1.0,
        activation: Activation = "gelu",
        norm_eps: float = 1e-12,
        tie_output: bool = True,
    ) -> None:
        super().__init__(weight=weight, tie_output=tie_output)
        self.norm_eps = norm_eps
        self.activation = activation_module(activation)

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        super().bind(encoder)
        width = self.tied_embedding.embedding_dim
        self.dense = nn.Linear(encoder.dim, width)
        self.norm = nn.LayerNorm(width, eps=self.norm_eps)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.dense.apply(truncated_normal_)

    def transform(self, hidden_MD: Tensor) -> Tensor:
        """States ready for the output matrix: (M, D) -> (M, E)."""
        return self.norm(self.activation(self.dense(hidden_MD)))

    def count(self, batch: PretrainingBatch) -> int:
        """See ``Objective``; hidden tokens."""
        return batch.num_targets

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        hidden_ME = self.transform(batch.read("masked", encode(batch.inputs, batch.reads)))
        output_VE = self.output_embedding.weight
        total, hits_M = cross_entropy_sum(hidden_ME, output_VE, self.bias, batch.targets_M, batch.weights_M)
        return self.loss_and_accuracy(total, (hits_M * batch.weights_M).sum(), batch.num_targets)

    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        """See ``Objective``."""
        return nn.functional.linear(self.transform(hidden_TD), self.output_embedding.weight, self.bias)

    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """See ``Objective``."""
        states_ME = self.transform(self.encoder(packed, reads=reads_at(packed, positions_M)).last)
        return [Softmax(states_ME, self.output_embedding.weight, self.bias)]
