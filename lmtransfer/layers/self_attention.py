"""Multi-head self-attention over packed sequences.

Shape legend: T tokens, N read positions, D width, H heads, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.layers.attention import attention
from lmtransfer.layers.layout import Layout


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) with one fused projection.

    Args:
        dim: width D.
        num_heads: heads H; must divide ``dim``.
        dropout: probability of dropping an attention weight. 0 by default, where the papers have 0.1: the flash
            kernels have none, and it takes the slower dense blocks.
        causal: a token sees itself and what is before it.
    """

    def __init__(self, *, dim: int, num_heads: int, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.dim, self.num_heads, self.attention_dropout, self.causal = dim, num_heads, dropout, causal
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.query_key_value.muon_splits = 3  # type: ignore[assignment]  # three matrices, stored as one
        self.output = nn.Linear(dim, dim)

    def forward(self, hidden_TD: Tensor, layout: Layout, reads_N: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            hidden_TD: token states.
            layout: of the batch; of the batch and the read positions where those are given.
            reads_N: the only positions whose result is wanted, or None for all.

        Returns:
            (T, D), or (N, D) for read positions.
        """
        if reads_N is None:
            projected = self.query_key_value(hidden_TD).view(-1, 3, self.num_heads, self.dim // self.num_heads)
            query, key, value = projected.unbind(1)
        else:
            weight, bias = self.query_key_value.weight, self.query_key_value.bias
            query = nn.functional.linear(hidden_TD[reads_N], weight[: self.dim], bias[: self.dim])
            query = query.view(-1, self.num_heads, self.dim // self.num_heads)
            projected = nn.functional.linear(hidden_TD, weight[self.dim :], bias[self.dim :])
            key, value = projected.view(-1, 2, self.num_heads, self.dim // self.num_heads).unbind(1)
        dropout = self.attention_dropout if self.training else 0.0
        attended = attention(query, key, value, layout, causal=self.causal, dropout=dropout)
        return self.output(attended.flatten(1))


def truncated_normal_(module: nn.Module, *, std: float = 0.02) -> None:
    """BERT's initialisation: weights from a normal cut at two deviations, biases 0, norms 1 and 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)
