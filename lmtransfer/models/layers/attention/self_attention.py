"""Multi-head self-attention over packed sequences.

Shape legend: T tokens, N output positions, D width, H heads, K head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from lmtransfer.models.layers.attention.base import AttentionLayer
from lmtransfer.models.layers.attention.layout import Layout
from lmtransfer.models.layers.attention.packed import attention
from lmtransfer.models.layers.attention.rotary import Rotation
from lmtransfer.models.layers.stacked_linear import StackedLinear


class HeadNorm(nn.RMSNorm):
    """Root-mean-square norm over the features of each head; it keeps the dtype of the states under autocast."""

    def forward(self, states: Tensor) -> Tensor:
        """(T, H, K) -> (T, H, K)."""
        assert self.weight is not None
        normed = nn.functional.rms_norm(states, self.normalized_shape, self.weight.to(states.dtype), self.eps)
        return normed.to(states.dtype)  # autocast on CUDA computes it in float32


class SelfAttention(AttentionLayer):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) with one fused projection.

    Args:
        dim: width D.
        num_heads: heads H; must divide ``dim``.
        dropout: probability of dropping an attention weight. The default is 0, but 0.1 in the papers: the flash
            kernels have no dropout, so attention with dropout uses the slower dense blocks.
        window: a token sees only tokens at most this many positions away; None: no limit.
        bias: add biases to the projections.
        query_key_norm: normalise the queries and keys of each head by their root mean square, with a gain (Henry et
            al. 2020; one gain per feature as in Qwen3), so that scores cannot grow without bound.
        norm_eps: epsilon of this norm.
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
        self, hidden_TD: Tensor, layout: Layout, reads_N: Tensor | None = None, rotation: Rotation | None = None
    ) -> Tensor:
        """Attend.

        Args:
            hidden_TD: token states.
            layout: layout of the batch; with ``reads_N``, layout of the batch and these positions.
            reads_N: positions to compute; None: all. Causal attention and attention within a window must compute all.
            rotation: rotates the queries and keys; None: the states already contain the positions.

        Returns:
            (T, D), or (N, D) with ``reads_N``.
        """
        if reads_N is None:
            query, key, value = self.query_key_value(hidden_TD).view(-1, 3, self.num_heads, self.head_dim).unbind(1)
        else:
            query = self.query_key_value.some(hidden_TD[reads_N], 0, 1).view(-1, self.num_heads, self.head_dim)
            projected = self.query_key_value.some(hidden_TD, 1, 3)
            key, value = projected.view(-1, 2, self.num_heads, self.head_dim).unbind(1)
        query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query = (rotation if reads_N is None else rotation.at(reads_N)).turn(query)
            key = rotation.turn(key)
        dropout = self.attention_dropout if self.training else 0.0
        attended = attention(query, key, value, layout, reach=self.window, dropout=dropout)
        return self.output(attended.flatten(1))
