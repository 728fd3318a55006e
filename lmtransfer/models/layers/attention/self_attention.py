"""The self-attention layer, and rotary position embeddings (RoPE); ``dispatch`` chooses the attention kernel.

Shape legend: T tokens, N output positions, D width, H heads, K head width, P pairs of features (K / 2).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmtransfer.models.layers.attention.dispatch import Layout, attention
from lmtransfer.models.layers.building_blocks import StackedLinear


class RotaryPositions(NamedTuple):
    """Rotary position embeddings, RoPE (Su et al. 2021, https://arxiv.org/abs/2104.09864), computed once per batch.

    Attributes:
        cos_TP, sin_TP: cosine and sine of the rotation angles of each token, float32.
    """

    cos_TP: Tensor
    sin_TP: Tensor

    def at(self, positions_N: Tensor) -> RotaryPositions:
        """Return the angles of the tokens at these positions only."""
        return RotaryPositions(self.cos_TP.index_select(0, positions_N), self.sin_TP.index_select(0, positions_N))

    def rotate(self, states: Tensor) -> Tensor:
        """Rotate queries or keys (T, ..., K) by the angles of their tokens, in float32 or wider.

        Where we differ from the paper: we pair feature p with feature p + K / 2, as GPT-NeoX and ModernBERT do, whereas
        the paper pairs neighbors (2p, 2p + 1). The results differ only in the order of the features.
        """
        shape = (-1, *(1,) * (states.dim() - 2), self.cos_TP.shape[-1])
        cos, sin = self.cos_TP.view(shape), self.sin_TP.view(shape)
        first, second = states.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(states.dtype)


def rotary_positions(positions_T: Tensor, *, head_dim: int, theta: float) -> RotaryPositions:
    """Compute the rotation angles ``position * theta ** (-2 p / K)``."""
    device = positions_T.device
    exponents_P = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles_TP = positions_T.float()[:, None] * (1.0 / theta**exponents_P)
    return RotaryPositions(angles_TP.cos(), angles_TP.sin())


class AttentionLayer(nn.Module):
    """The base class of layers in which the tokens of a sequence see one another."""

    def __init__(self, *, dim: int, window: int | None = None) -> None:
        super().__init__()
        self.dim, self.window = dim, window

    def num_seen(self, mean_length: float) -> float:
        """Return the approximate number of tokens that each token sees in sequences of ``mean_length``."""
        return mean_length if self.window is None else min(mean_length, 2 * self.window + 1)


class HeadNorm(nn.RMSNorm):
    """Root-mean-square norm over the features of each head; the output keeps the dtype of the input under autocast."""

    def forward(self, states: Tensor) -> Tensor:
        """Normalize the heads, (T, H, K) -> (T, H, K)."""
        assert self.weight is not None
        normed = nn.functional.rms_norm(states, self.normalized_shape, self.weight.to(states.dtype), self.eps)
        return normed.to(states.dtype)  # autocast on CUDA computes it in float32


class SelfAttention(AttentionLayer):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) with one fused projection.

    Args:
        dropout: probability of dropping an attention weight. The default is 0, not 0.1 as in the papers, because only
            the slower dense blocks support dropout.
        query_key_norm: whether to normalize the queries and keys of each head by their root mean square, with a gain
            (Henry et al. 2020; one gain per feature as in Qwen3), so that scores cannot grow without bound.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        window: int | None = None,
        bias: bool = True,
        query_key_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(dim=dim, window=window)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.attention_dropout = dropout
        self.query_key_value = StackedLinear(dim, dim, parts=("query", "key", "value"), bias=bias)
        self.query_norm = HeadNorm(self.head_dim, eps=norm_eps) if query_key_norm else nn.Identity()
        self.key_norm = HeadNorm(self.head_dim, eps=norm_eps) if query_key_norm else nn.Identity()
        self.output = nn.Linear(dim, dim, bias=bias)

    def forward(
        self, hidden_TD: Tensor, layout: Layout, reads_N: Tensor | None = None, rotary: RotaryPositions | None = None
    ) -> Tensor:
        """Compute self-attention, (T, D), or (N, D) with ``reads_N``.

        Args:
            layout: layout of the batch; with ``reads_N``, layout whose queries are these positions.
            reads_N: positions to compute; None for all, as causal attention and windows require.
        """
        if reads_N is None:
            query, key, value = self.query_key_value(hidden_TD).view(-1, 3, self.num_heads, self.head_dim).unbind(1)
        else:
            query = self.query_key_value.forward_slice(hidden_TD[reads_N], 0, 1).view(-1, self.num_heads, self.head_dim)
            projected = self.query_key_value.forward_slice(hidden_TD, 1, 3)
            key, value = projected.view(-1, 2, self.num_heads, self.head_dim).unbind(1)
        query, key = self.query_norm(query), self.key_norm(key)
        if rotary is not None:
            query = (rotary if reads_N is None else rotary.at(reads_N)).rotate(query)
            key = rotary.rotate(key)
        dropout = self.attention_dropout if self.training else 0.0
        attended = attention(query, key, value, layout, reach=self.window, dropout=dropout)
        return self.output(attended.flatten(1))
