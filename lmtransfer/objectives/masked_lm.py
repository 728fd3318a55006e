"""Masked language modelling (BERT).

Shape legend: M prediction positions, V vocabulary, D width, E width of the token embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.layers.attention.self_attention import truncated_normal_
from lmtransfer.layers.cross_entropy import cross_entropy_sum
from lmtransfer.layers.feed_forward import Activation, activation_module
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction, tied_embedding
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss


class MaskedLanguageModel(nn.Module):
    """Predicts the hidden tokens (Devlin et al. 2019, section 3.1), at their positions only.

    The head is BERT's: a dense layer, its activation and a LayerNorm, then the token embedding as output matrix with
    a bias of its own. Padding rows of the vocabulary are in the softmax, as in the original, and are never targets.
    Losses: "mlm", the cross entropy in nats summed over hidden tokens; "mlm_accuracy" beside it.

    Args:
        weight: of the loss in the total.
        activation: of the dense layer.
        norm_eps: LayerNorm's epsilon.
    """

    name = "mlm"
    directions: tuple[Direction, ...] = ("bidirectional",)
    reads: Read = "masked"
    label: str | None = None
    uses_pooler = False

    def __init__(self, *, weight: float = 1.0, activation: Activation = "gelu", norm_eps: float = 1e-12) -> None:
        super().__init__()
        self.weight, self.norm_eps = weight, norm_eps
        self.activation = activation_module(activation)

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        width = tied_embedding(self, encoder).embedding_dim
        self.dense = nn.Linear(encoder.dim, width)
        self.norm = nn.LayerNorm(width, eps=self.norm_eps)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.dense.apply(truncated_normal_)
        self._encoder = (encoder,)  # a tuple, so that the encoder's weights are not this module's a second time

    def transform(self, hidden_MD: Tensor) -> Tensor:
        """States ready for the output matrix: (M, D) -> (M, E)."""
        return self.norm(self.activation(self.dense(hidden_MD)))

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; hidden tokens."""
        return {"mlm": batch.num_targets, "mlm_accuracy": batch.num_targets}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        hidden_ME = self.transform(batch.read("masked", encode(batch.inputs, batch.reads)))
        output_VE = tied_embedding(self, self._encoder[0]).weight
        total, hits_M = cross_entropy_sum(hidden_ME, output_VE, self.bias, batch.targets_M, batch.weights_M)
        return {
            "mlm": Loss(total, batch.num_targets, self.weight),
            "mlm_accuracy": Loss((hits_M * batch.weights_M).sum(), batch.num_targets, 0.0),
        }
