"""The transformer layer.

Shape legend: T tokens, N read positions, D width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from lmtransfer.layers.attention.layout import Layout
from lmtransfer.layers.attention.self_attention import SelfAttention
from lmtransfer.layers.dropout import Dropout
from lmtransfer.layers.feed_forward import Activation, FeedForward

NormPlace = Literal["post", "pre"]


class TransformerLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual connection and LayerNorm.

    Args:
        dim: width D.
        num_heads: attention heads.
        hidden_dim: width of the feed-forward layer.
        norm: "post" normalises each residual sum (Vaswani et al. 2017; BERT); "pre" normalises the input of each
            branch (GPT-2; Xiong et al. 2020), and the encoder normalises once at the end.
        norm_eps: LayerNorm's epsilon.
        activation: of the feed-forward layer.
        dropout: probability of dropping a feature of either branch.
        attention_dropout: probability of dropping an attention weight.
        causal: a token sees itself and what is before it.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        hidden_dim: int,
        norm: NormPlace,
        norm_eps: float,
        activation: Activation,
        dropout: float,
        attention_dropout: float,
        causal: bool,
    ) -> None:
        super().__init__()
        self.pre_norm = norm == "pre"
        self.attention = SelfAttention(dim=dim, num_heads=num_heads, dropout=attention_dropout, causal=causal)
        self.attention_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.feed_forward = FeedForward(dim=dim, hidden_dim=hidden_dim, activation=activation)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, hidden_TD: Tensor, layout: Layout, reads_N: Tensor | None = None) -> Tensor:
        """(T, D) -> (T, D), or (N, D) where only the positions ``reads_N`` are wanted."""
        residual = hidden_TD if reads_N is None else hidden_TD[reads_N]
        if self.pre_norm:
            residual = residual + self.dropout(self.attention(self.attention_norm(hidden_TD), layout, reads_N))
            return residual + self.dropout(self.feed_forward(self.feed_forward_norm(residual)))
        residual = self.attention_norm(residual + self.dropout(self.attention(hidden_TD, layout, reads_N)))
        return self.feed_forward_norm(residual + self.dropout(self.feed_forward(residual)))
