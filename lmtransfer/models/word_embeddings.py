"""Static word vectors (Mikolov et al. 2013, https://arxiv.org/abs/1301.3781), as an encoder without layers.

Shape legend: T tokens, N read positions, D width.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Direction, EncoderOutput, FamilyHead, Reads
from lmtransfer.models.transformer import check_length


class WordEmbeddings(nn.Module):
    """A vector for each token, whatever stands around it: the baseline that contextual encoders are measured against.

    Vectors start uniform within ``0.5 / dim`` of 0, as in word2vec.c.

    Args:
        vocab_size: rows of the token embedding.
        dim: width D.
        max_length: longest sequence in tokens; nothing in the model depends on it.
    """

    attention: Direction = "none"
    family_head = FamilyHead(token="mean")
    num_layers = 0
    num_segments = 1
    pooler = None

    def __init__(self, *, vocab_size: int, dim: int, max_length: int = 4096) -> None:
        super().__init__()
        self.vocab_size, self.dim, self.max_length = vocab_size, dim, max_length
        self.token_embedding = nn.Embedding(vocab_size, dim)
        nn.init.uniform_(self.token_embedding.weight, -0.5 / dim, 0.5 / dim)

    def forward(self, batch: PackedBatch, carry: Any = None, reads: Reads | None = None) -> EncoderOutput:
        """Look vectors up; see ``models.base.Encoder``."""
        check_length(batch, self.max_length)
        tokens = batch.tokens_T if reads is None else batch.tokens_T[reads.positions_N]
        return EncoderOutput(layers=(self.token_embedding(tokens),))
