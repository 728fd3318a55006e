"""Static word vectors (Mikolov et al. 2013, https://arxiv.org/abs/1301.3781), as an encoder without layers.

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from typing_extensions import override

from lmtransfer.config.types import Count
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, OutputPositions


class WordEmbeddings(Encoder):
    """One vector per token, independent of its context: the baseline for contextual encoders.

    Vectors are initialized uniformly within ``0.5 / dim`` of 0, as in word2vec.c.

    Args:
        max_length: maximum sequence length in tokens; nothing in the model depends on it.
    """

    attention = "none"
    token_embedding: nn.Embedding
    family_head = FamilyHead(token="mean")

    def __init__(self, *, vocab_size: Count, dim: Count, max_length: Count = 4096) -> None:
        super().__init__(dim=dim, num_layers=0, max_length=max_length, vocab_size=vocab_size)
        self.token_embedding = nn.Embedding(vocab_size, dim)
        nn.init.uniform_(self.token_embedding.weight, -0.5 / dim, 0.5 / dim)

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        tokens = batch.tokens_T if output_positions is None else batch.tokens_T[output_positions.positions_N]
        return EncoderOutput(layers=(self.token_embedding(tokens),))
