"""Static word vectors (Mikolov et al. 2013, https://arxiv.org/abs/1301.3781): encoders without layers.

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from typing_extensions import override

from lmtransfer.config.types import Count
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, OutputPositions


class _Lookup(Encoder):
    """One vector per token from ``token_embedding``, whatever the context."""

    attention = "none"
    family_head = FamilyHead(token="mean")

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        tokens = batch.tokens_T if output_positions is None else batch.tokens_T[output_positions.positions_N]
        table = self.token_embedding
        assert table is not None
        return EncoderOutput(layers=(table(tokens),))


class WordEmbeddings(_Lookup):
    """Static word vectors: the baseline for contextual encoders.

    Vectors are initialized uniformly within ``0.5 / dim`` of 0, as in word2vec.c.

    Args:
        max_length: maximum sequence length in tokens; the weights do not depend on this limit.
    """

    token_embedding: nn.Embedding

    def __init__(self, *, vocab_size: Count, dim: Count, max_length: Count = 4096) -> None:
        super().__init__(dim=dim, num_layers=0, max_length=max_length, vocab_size=vocab_size)
        self.token_embedding = nn.Embedding(vocab_size, dim)
        nn.init.uniform_(self.token_embedding.weight, -0.5 / dim, 0.5 / dim)


class TokenVectors(_Lookup):
    """The token embedding of another encoder, for training with word-vector objectives.

    Args:
        whole: the other encoder; a checkpoint contains all of its weights.
    """

    def __init__(self, whole: Encoder) -> None:
        table = whole.token_embedding
        if table is None:
            raise ConfigError(
                f"{type(whole).__name__} reads words as characters, so it has no token embeddings that can be "
                "trained as word vectors: use a model that reads tokens, or leave out this phase"
            )
        super().__init__(
            dim=table.embedding_dim, num_layers=0, max_length=whole.max_length, vocab_size=whole.vocab_size
        )
        self.whole = whole

    @property
    def token_embedding(self) -> nn.Embedding:
        """The other encoder's token embedding."""
        table = self.whole.token_embedding
        assert table is not None
        return table


@torch.no_grad()
def standardize(table: nn.Embedding, *, center: bool, deviation: float | None) -> None:
    """Center and rescale a table of vectors in place, to the statistics of a randomly initialized table.

    Args:
        deviation: resulting standard deviation of all entries of the table; None keeps the scale.
    """
    vectors_VD = table.weight.cpu().double()  # on the CPU: not every device has float64
    if center:
        vectors_VD = vectors_VD - vectors_VD.mean(0)
    if deviation is not None:
        vectors_VD = vectors_VD * (deviation / vectors_VD.std(correction=0).clamp_min(torch.finfo(torch.float32).tiny))
    table.weight.copy_(vectors_VD)
