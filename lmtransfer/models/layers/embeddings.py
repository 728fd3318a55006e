"""Token, position and segment embeddings.

Shape legend: T tokens of a packed batch, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.models.layers.building_blocks import Dropout


class InputEmbeddings(nn.Module):
    """The sum of token, learned position and segment embeddings (Devlin et al. 2019, section 3), optionally normalized.

    Args:
        num_segments: number of rows of the segment embedding; 1 means no segments.
        position_offset: number of rows at the front of the position embedding that no token uses.
        type_row: whether to add one learned row to every token if there are no segments.
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
        position_offset: int = 0,
        type_row: bool = False,
    ) -> None:
        super().__init__()
        self.position_offset = position_offset
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(max_length + position_offset, dim)
        self.segment = nn.Embedding(num_segments, dim) if num_segments > 1 or type_row else None
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """Embed tokens, given their ids, positions and segments, int64 (T,) each -> (T, D)."""
        hidden_TD = self.token(tokens_T) + self.position(positions_T + self.position_offset)
        if self.segment is not None:
            hidden_TD = hidden_TD + self._of_segments(self.segment, segments_T)
        return self.dropout(self.norm(hidden_TD))

    @staticmethod
    def _of_segments(segment: nn.Embedding, segments_T: Tensor) -> Tensor:
        """(T, D), or (D,) if there is only one segment."""
        if segment.num_embeddings == 1:
            return segment.weight[0]
        if segment.num_embeddings == 2 and segments_T.device.type != "cpu":
            # The gradient is a sum. With a lookup, the threads of all tokens wait for one another at two rows.
            return torch.where(segments_T[:, None] == 0, segment.weight[0], segment.weight[1])
        return segment(segments_T)
