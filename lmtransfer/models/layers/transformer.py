"""The transformer layer, and the settings that all layers of a stack share.

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from lmtransfer.errors import ConfigError
from lmtransfer.models.layers.attention.layout import Layout
from lmtransfer.models.layers.attention.self_attention import SelfAttention
from lmtransfer.models.layers.building_blocks import Activation, Dropout, FeedForward, ResidualNorm

NormPlace = Literal["post", "pre"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSettings:
    """The settings that all layers of a stack share.

    Attributes:
        norm: "post" normalizes each residual sum (Vaswani et al. 2017; BERT); "pre" normalizes the input of each
            branch (GPT-2; Xiong et al. 2020), and the encoder normalizes once at the end.
    """

    dim: int
    num_heads: int
    hidden_dim: int
    norm: NormPlace
    norm_eps: float
    activation: Activation
    dropout: float
    attention_dropout: float

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ConfigError(
                f"model.num_heads={self.num_heads} does not divide model.dim={self.dim}: choose a divisor of {self.dim}"
            )

    def layer_norm(self) -> ResidualNorm:
        """Create a LayerNorm."""
        return ResidualNorm(self.dim, eps=self.norm_eps)

    def final_norm(self) -> nn.Module:
        """Create the module after the last layer: a LayerNorm for pre-norm layers, else the identity."""
        return self.layer_norm() if self.norm == "pre" else nn.Identity()

    def feed_forward(self) -> FeedForward:
        """Create a feed-forward layer."""
        return FeedForward(dim=self.dim, hidden_dim=self.hidden_dim, activation=self.activation)


class TransformerLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual connection and LayerNorm."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.pre_norm = settings.norm == "pre"
        self.attention = SelfAttention(
            dim=settings.dim, num_heads=settings.num_heads, dropout=settings.attention_dropout
        )
        self.attention_norm = settings.layer_norm()
        self.feed_forward = settings.feed_forward()
        self.feed_forward_norm = settings.layer_norm()
        self.dropout = Dropout(settings.dropout)

    def forward(self, hidden_TD: Tensor, layout: Layout, reads_N: Tensor | None = None) -> Tensor:
        """(T, D) -> (T, D), or (N, D) at the positions ``reads_N``, if any."""
        residual = hidden_TD if reads_N is None else hidden_TD[reads_N]
        if self.pre_norm:
            residual = residual + self.dropout(self.attention(self.attention_norm(hidden_TD), layout, reads_N))
            return residual + self.dropout(self.feed_forward(self.feed_forward_norm(residual)))
        residual = self.attention_norm(residual + self.dropout(self.attention(hidden_TD, layout, reads_N)))
        return self.feed_forward_norm(residual + self.dropout(self.feed_forward(residual)))
