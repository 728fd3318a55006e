"""A modern encoder with the layers of ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663): RoPE, GeGLU.

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.electra import GeneratorEncoder, generator_settings
from lmtransfer.models.layers.attention.dispatch import Layout
from lmtransfer.models.layers.attention.self_attention import RotaryPositions, SelfAttention, rotary_positions
from lmtransfer.models.layers.building_blocks import (
    Activation,
    Dropout,
    GatedFeedForward,
    ResidualNorm,
    truncated_normal_,
)
from lmtransfer.models.transformer import LayerStack, TransformerEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernSettings:
    """The settings of the layers; see the arguments of the same names in ``ModernEncoder``."""

    dim: int
    num_heads: int
    hidden_dim: int
    window: int
    global_every: int
    global_theta: float
    local_theta: float
    normalise_first_input: bool
    query_key_norm: bool
    bias: bool
    norm_eps: float
    activation: Activation
    dropout: float
    attention_dropout: float

    def layer_norm(self) -> ResidualNorm:
        """Create a LayerNorm."""
        return ResidualNorm(self.dim, eps=self.norm_eps, bias=self.bias)


class ModernLayer(nn.Module):
    """Pre-norm self-attention and gated feed-forward, each with a residual connection.

    Args:
        index: index of the layer, from 0. Every ``global_every``-th layer has no window. The first layer may read its
            input without a norm.
    """

    def __init__(self, settings: ModernSettings, index: int) -> None:
        super().__init__()
        self.window = settings.window // 2 if index % settings.global_every else None
        norm = settings.layer_norm()
        self.attention_norm: nn.Module = norm if index or settings.normalise_first_input else nn.Identity()
        self.attention = SelfAttention(
            dim=settings.dim,
            num_heads=settings.num_heads,
            dropout=settings.attention_dropout,
            window=self.window,
            bias=settings.bias,
            query_key_norm=settings.query_key_norm,
            norm_eps=settings.norm_eps,
        )
        self.feed_forward_norm = settings.layer_norm()
        self.feed_forward = GatedFeedForward(
            dim=settings.dim, hidden_dim=settings.hidden_dim, activation=settings.activation, bias=settings.bias
        )
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, hidden_TD: Tensor, layout: Layout, rotary: RotaryPositions, reads_N: Tensor | None = None
    ) -> Tensor:
        """Apply the layer, (T, D) -> (T, D), or (N, D) at the positions ``reads_N``, if any.

        Args:
            layout: layout of the batch; with ``reads_N`` but no window, layout whose queries are these positions.
            reads_N: positions to compute; None for all.
        """
        normed_TD = self.attention_norm(hidden_TD)
        if reads_N is None:
            residual, attended = hidden_TD, self.attention(normed_TD, layout, None, rotary)
        elif self.window is None:
            residual, attended = hidden_TD[reads_N], self.attention(normed_TD, layout, reads_N, rotary)
        else:  # selected queries must see the whole sequence, so attention within a window computes all queries
            residual, attended = hidden_TD[reads_N], self.attention(normed_TD, layout, None, rotary)[reads_N]
        residual = residual + self.dropout(attended)
        return residual + self.dropout(self.feed_forward(self.feed_forward_norm(residual)))


class ModernStack(LayerStack):
    """Modern layers, of which the first and every ``global_every``-th after it see the whole sequence."""

    def __init__(self, settings: ModernSettings, *, num_layers: int) -> None:
        super().__init__((ModernLayer(settings, index) for index in range(num_layers)), settings.layer_norm())
        self.settings = settings
        self.apply(truncated_normal_)
        with torch.no_grad():  # the sum of the layers starts at a scale of about 1 (GPT-2; Warner et al., appendix A)
            for module in self.modules():
                if isinstance(module, SelfAttention):
                    module.output.weight.div_(math.sqrt(2 * num_layers))
                if isinstance(module, GatedFeedForward):
                    module.contract.weight.div_(math.sqrt(2 * num_layers))

    @override
    def layer_inputs(self, batch: PackedBatch) -> list[tuple[Any, ...]]:
        head_dim = self.settings.dim // self.settings.num_heads
        everywhere, nearby = (
            rotary_positions(batch.positions_T, head_dim=head_dim, theta=theta)
            for theta in (self.settings.global_theta, self.settings.local_theta)
        )
        return [(everywhere if cast(ModernLayer, layer).window is None else nearby,) for layer in self.layers]


class NormalizedEmbeddings(nn.Module):
    """Normalized token embeddings without positions, which attention adds, and without segments."""

    def __init__(self, *, vocab_size: int, dim: int, bias: bool, norm_eps: float, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.norm = nn.LayerNorm(dim, eps=norm_eps, bias=bias)
        self.dropout = Dropout(dropout)
        self.apply(truncated_normal_)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """Embed token ids, int64 (T,) -> (T, D); positions and segments are ignored."""
        return self.dropout(self.norm(self.token(tokens_T)))


class ModernEncoder(TransformerEncoder):
    """A bidirectional pre-norm transformer with rotary positions, GeGLU, and alternating local and global attention.

    Where we differ from the paper: the tokenizers round vocabularies up to a multiple of 64 (``Tokenizer``), and
    dropout applies to both branches instead of the attention branch only.

    Args:
        window: number of other positions that a token sees in a local layer, half of them on each side.
        global_every: layer 0 and every ``global_every``-th layer after it see the whole sequence; with 1, all layers
            do.
        normalise_first_input: normalize the input of attention in the first layer, although the embeddings are already
            normalized; ModernBERT does not.
        query_key_norm: normalize queries and keys (see ``SelfAttention``); ModernBERT does not.
        hidden_dim: width of each half of the GeGLU.
        global_theta: base of the rotary positions in global layers; smaller values suit shorter rows.
        local_theta: base of the rotary positions in local layers.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")
    family_head = FamilyHead(token="mean")

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        max_length: Count = 8192,
        window: int = 128,
        global_every: SmallCount = 3,
        global_theta: float = 160_000.0,
        local_theta: float = 10_000.0,
        normalise_first_input: bool = False,
        query_key_norm: bool = False,
        bias: bool = False,
        norm_eps: Positive = 1e-5,
        activation: Activation = "gelu",
        dropout: DropoutProb = 0.0,
        attention_dropout: DropoutProb = 0.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        if dim % (2 * num_heads):
            raise ConfigError(
                f"model.num_heads={num_heads} does not divide model.dim={dim} into even widths, which rotary positions "
                f"need: choose a divisor of {dim // 2}"
            )
        if window < 2 or window % 2:
            raise ConfigError(f"model.window={window} is not allowed: use an even number of at least 2")
        self.embeddings = NormalizedEmbeddings(
            vocab_size=vocab_size, dim=dim, bias=bias, norm_eps=norm_eps, dropout=dropout
        )
        self._settings = ModernSettings(
            dim=dim,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            window=window,
            global_every=global_every,
            global_theta=global_theta,
            local_theta=local_theta,
            normalise_first_input=normalise_first_input,
            query_key_norm=query_key_norm,
            bias=bias,
            norm_eps=norm_eps,
            activation=activation,
            dropout=dropout,
            attention_dropout=attention_dropout,
        )
        self.stack = ModernStack(self._settings, num_layers=num_layers)

    @override
    def generator(self, *, size: float, own_embeddings: bool = False, copied_layers: bool = False) -> GeneratorEncoder:
        settings = generator_settings(self._settings, size=size, copied_layers=copied_layers)
        stack = ModernStack(settings, num_layers=self.num_layers)
        if copied_layers:
            stack.load_state_dict(self.get_submodule("stack").state_dict())
        return GeneratorEncoder(
            encoder=self, stack=stack, dim=settings.dim, bias=settings.bias, own_embeddings=own_embeddings
        )
