"""An encoder as one would build it in 2026: ModernBERT's layers (Warner et al. 2024, https://arxiv.org/abs/2412.13663).

Shape legend: T tokens, N read positions, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.layers.attention.layout import Layout
from lmtransfer.layers.attention.rotary import Rotation, rotation
from lmtransfer.layers.attention.self_attention import SelfAttention
from lmtransfer.layers.dropout import Dropout
from lmtransfer.layers.feed_forward import Activation, GatedFeedForward
from lmtransfer.layers.initialisation import truncated_normal_
from lmtransfer.models.base import FamilyHead, OutputPositions
from lmtransfer.models.generator import GeneratorEncoder, GeneratorShape, check_copied, copy_weights, generator_shape
from lmtransfer.models.padded import layout_of
from lmtransfer.models.transformer import TransformerEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernSettings:
    """What a stack is made by; the arguments of ``ModernEncoder`` of the same names."""

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

    def layer_norm(self) -> nn.LayerNorm:
        """A new norm."""
        return nn.LayerNorm(self.dim, eps=self.norm_eps, bias=self.bias)


class ModernLayer(nn.Module):
    """Pre-norm self-attention and gated feed-forward, each with a residual connection.

    Args:
        settings: of the stack.
        number: which layer it is, from 0 on: every ``global_every``-th has no window, and the first may read its input
            as it is.
    """

    def __init__(self, settings: ModernSettings, number: int) -> None:
        super().__init__()
        self.window = settings.window // 2 if number % settings.global_every else None
        norm = settings.layer_norm()
        self.attention_norm: nn.Module = norm if number or settings.normalise_first_input else nn.Identity()
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

    def forward(self, hidden_TD: Tensor, layout: Layout, rotation: Rotation, reads_N: Tensor | None = None) -> Tensor:
        """(T, D) -> (T, D), or (N, D) where only the positions ``reads_N`` are wanted.

        Args:
            hidden_TD: token states.
            layout: of the batch; of the batch and the read positions where those are given and there is no window.
            rotation: of all T tokens.
            reads_N: the only positions whose result is wanted.
        """
        normed_TD = self.attention_norm(hidden_TD)
        if reads_N is None:
            residual, attended = hidden_TD, self.attention(normed_TD, layout, None, rotation)
        elif self.window is None:
            residual, attended = hidden_TD[reads_N], self.attention(normed_TD, layout, reads_N, rotation)
        else:  # a selection of queries sees everything, so a window needs them all
            residual, attended = hidden_TD[reads_N], self.attention(normed_TD, layout, None, rotation)[reads_N]
        residual = residual + self.dropout(attended)
        return residual + self.dropout(self.feed_forward(self.feed_forward_norm(residual)))


class ModernStack(nn.Module):
    """Layers, each ``global_every``-th of which, from the first on, sees the whole sequence.

    Args:
        settings: of the layers.
        num_layers: how many.
    """

    def __init__(self, settings: ModernSettings, *, num_layers: int) -> None:
        super().__init__()
        self.settings = settings
        self.layers = nn.ModuleList(ModernLayer(settings, number) for number in range(num_layers))
        self.final_norm = settings.layer_norm()
        self.apply(truncated_normal_)
        with torch.no_grad():  # the sum over layers starts as wide as one layer's (GPT-2; Warner et al., appendix A)
            for module in self.modules():
                if isinstance(module, SelfAttention):
                    module.output.weight.div_(math.sqrt(2 * num_layers))
                if isinstance(module, GatedFeedForward):
                    module.contract.weight.div_(math.sqrt(2 * num_layers))

    def forward(
        self,
        embedded_TD: Tensor,
        batch: PackedBatch,
        output_positions: OutputPositions | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Tensor, ...]:
        """All layers' outputs, (T, D) each, the embeddings first; the last is (N, D) at ``output_positions`` alone."""
        device = embedded_TD.device
        layout = layout_of(batch, device, causal=causal)
        head_dim = self.settings.dim // self.settings.num_heads
        everywhere = rotation(batch.positions_T, head_dim=head_dim, theta=self.settings.global_theta)
        nearby = rotation(batch.positions_T, head_dim=head_dim, theta=self.settings.local_theta)
        outputs, hidden_TD = [embedded_TD], embedded_TD
        *lower, top = [cast(ModernLayer, layer) for layer in self.layers]
        for layer in lower:
            hidden_TD = layer(hidden_TD, layout, everywhere if layer.window is None else nearby)
            outputs.append(hidden_TD)
        turned = everywhere if top.window is None else nearby
        if output_positions is None:
            last = top(hidden_TD, layout, turned)
        elif layout.sees_all:
            if top.window is None:
                layout = Layout.of(batch.lengths, output_positions.counts, device=device)
            last = top(hidden_TD, layout, turned, output_positions.positions_N)
        else:
            last = top(hidden_TD, layout, turned)[output_positions.positions_N]
        return (*outputs, self.final_norm(last))


class NormalisedEmbeddings(nn.Module):
    """Token embeddings, normalised; positions are in the attention, and there are no segments.

    Args:
        vocab_size: rows.
        dim: width D.
        bias: add a bias to the norm.
        norm_eps: its epsilon.
        dropout: probability of dropping a feature of the result.
    """

    def __init__(self, *, vocab_size: int, dim: int, bias: bool, norm_eps: float, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.norm = nn.LayerNorm(dim, eps=norm_eps, bias=bias)
        self.dropout = Dropout(dropout)
        self.apply(truncated_normal_)

    def forward(self, batch: PackedBatch) -> Tensor:
        """(T, D)."""
        return self.dropout(self.norm(self.token(batch.tokens_T)))


class ModernEncoder(TransformerEncoder):
    """A bidirectional pre-norm transformer with rotary positions, GeGLU, and local and global attention in turn.

    Where we differ from the paper: vocabularies are rounded up to a multiple of 64 by the tokenizers (``Tokenizer``);
    the paper drops features of the attention branch only.

    Args:
        vocab_size: rows of the token embedding.
        dim: width D.
        num_layers: transformer layers.
        num_heads: attention heads; must divide ``dim`` into even widths.
        hidden_dim: width of each half of the gated feed-forward layers.
        max_length: longest sequence in tokens.
        window: how many positions a token sees in a local layer: half of it to each side, and itself.
        global_every: layer 0 and each so many-th one after it see the whole sequence; 1: all do.
        global_theta: base of the rotary angles of the global layers.
        local_theta: that of the local layers.
        normalise_first_input: normalise what the first layer's attention reads, though the embeddings are normalised;
            ModernBERT does not.
        query_key_norm: normalise queries and keys (see ``SelfAttention``); ModernBERT does not.
        bias: add biases to linear layers and norms; ModernBERT has none.
        norm_eps: epsilon of the norms.
        activation: of the gated feed-forward layers.
        dropout: of embeddings and of each branch.
        attention_dropout: of attention weights.

    Raises:
        ConfigError: heads that do not divide the width evenly, an odd window, or ``global_every`` below 1.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")
    family_head = FamilyHead(token="mean")

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        max_length: int = 8192,
        window: int = 128,
        global_every: int = 3,
        global_theta: float = 160_000.0,
        local_theta: float = 10_000.0,
        normalise_first_input: bool = False,
        query_key_norm: bool = False,
        bias: bool = False,
        norm_eps: float = 1e-5,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        if dim % (2 * num_heads):
            raise ConfigError(
                f"model.num_heads={num_heads} does not divide model.dim={dim} into even widths, as rotary positions "
                f"need: choose a divisor of {dim // 2}"
            )
        if window < 2 or window % 2:
            raise ConfigError(f"model.window={window} is not an even number of at least 2, half of it for each side")
        if global_every < 1:
            raise ConfigError(f"model.global_every={global_every} is not allowed: use 1 (all layers global) or more")
        self.embeddings = NormalisedEmbeddings(
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

    def generator(self, *, size: float, own_embeddings: bool = False, copied_layers: bool = False) -> GeneratorEncoder:
        """See ``Encoder``; ModernBERT has none, this one is ELECTRA's idea."""
        settings = self._settings
        shape = generator_shape(dim=self.dim, hidden_dim=settings.hidden_dim, size=size)
        stack = ModernStack(replace(settings, **shape._asdict()), num_layers=self.num_layers)
        if copied_layers:
            check_copied(shape, GeneratorShape(self.dim, settings.num_heads, settings.hidden_dim))
            copy_weights({stack: self.get_submodule("stack")})
        return GeneratorEncoder(
            encoder=self,
            embeddings=self.embeddings,
            stack=stack,
            dim=shape.dim,
            bias=settings.bias,
            own_embeddings=own_embeddings,
        )
