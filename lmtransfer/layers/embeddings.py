"""Token, position and segment embeddings.

Shape legend: T tokens of a packed batch, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch


class InputEmbeddings(nn.Module):
    """Sum of token, learnt position and segment embeddings (Devlin et al. 2019, section 3), normalised if asked.

    Args:
        vocab_size: rows of the token embedding.
        dim: width D.
        max_length: rows of the position embedding.
        num_segments: rows of the segment embedding; 1 means none.
        norm: apply LayerNorm to the sum (post-norm families).
        norm_eps: its epsilon.
        dropout: probability of dropping a feature of the result.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        max_length: int,
        num_segments: int,
        norm: bool,
        norm_eps: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(max_length, dim)
        self.segment = nn.Embedding(num_segments, dim) if num_segments > 1 else None
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: PackedBatch) -> Tensor:
        """(T, D)."""
        hidden_TD = self.token(batch.tokens_T) + self.position(batch.positions_T)
        if self.segment is not None:
            hidden_TD = hidden_TD + self.segment(batch.segments_T)
        return self.dropout(self.norm(hidden_TD))
