"""Transformer layers and stacks: the basis of the BERT and GPT families.

Shape legend: T tokens, N output positions, D width, E width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, OutputPositions
from lmtransfer.models.layers.attention.dispatch import Layout, layout_of
from lmtransfer.models.layers.attention.self_attention import SelfAttention
from lmtransfer.models.layers.building_blocks import Activation, Dropout, FeedForward, ResidualNorm, ResidualStream

NormPlace = Literal["post", "pre"]


@dataclass(frozen=True, slots=True)
class TransformerSettings:
    """The settings of the layers in a stack, which are also arguments of every transformer encoder.

    Attributes:
        num_heads: must divide ``dim``.
        norm: "post" normalizes each residual sum (Vaswani et al. 2017; BERT); "pre" normalizes the input of each
            branch and the final output (GPT-2; Xiong et al. 2020).
        dropout: probability of dropping a feature of the embeddings or of a branch.
        attention_dropout: probability of dropping an attention weight; 0 by default (see ``SelfAttention``), although
            most papers use 0.1.
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

    window: int | None = None

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
        """Apply the layer, (T, D) -> (T, D), or (N, D) at the positions ``reads_N``, if any."""
        residual = hidden_TD if reads_N is None else hidden_TD[reads_N]
        if self.pre_norm:
            residual = residual + self.dropout(self.attention(self.attention_norm(hidden_TD), layout, reads_N))
            return residual + self.dropout(self.feed_forward(self.feed_forward_norm(residual)))
        residual = self.attention_norm(residual + self.dropout(self.attention(hidden_TD, layout, reads_N)))
        return self.feed_forward_norm(residual + self.dropout(self.feed_forward(residual)))


class LayerStack(nn.Module):
    """Layers over embedded tokens, followed by a norm; a subclass creates the layers."""

    def __init__(self, layers: Iterable[nn.Module], final_norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.residual = ResidualStream()

    def layer_inputs(self, batch: PackedBatch) -> list[tuple[Any, ...]]:
        """Return the additional arguments of each layer."""
        return [()] * len(self.layers)

    def forward(
        self,
        embedded_TD: Tensor,
        batch: PackedBatch,
        output_positions: OutputPositions | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Tensor, ...]:
        """Return the embeddings and all layer outputs, (T, D) each; with ``output_positions``, the last is (N, D).

        The last layer then computes attention queries and the feed-forward layer only at these positions. The result is
        exact. With 15 % of the tokens masked, this saves a sixth of the computation of a four-layer encoder.
        """
        device, embedded_TD = embedded_TD.device, self.residual.begin(embedded_TD)
        layout = layout_of(batch, device, causal=causal)
        outputs, hidden_TD = [embedded_TD], embedded_TD
        layers: list[tuple[Any, tuple[Any, ...]]] = list(zip(self.layers, self.layer_inputs(batch), strict=True))
        *lower, (top, inputs) = layers
        for layer, more in lower:
            hidden_TD = layer(hidden_TD, layout, *more)
            outputs.append(hidden_TD)
        if output_positions is None:
            last = top(hidden_TD, layout, *inputs)
        elif layout.attends_to_all:
            if top.window is None:
                layout = Layout.of(batch.lengths, output_positions.counts, device=device)
            last = top(hidden_TD, layout, *inputs, output_positions.positions_N)
        else:
            last = top(hidden_TD, layout, *inputs)[output_positions.positions_N]
        return (*outputs, self.residual.end(self.final_norm(last)))


class TransformerStack(LayerStack):
    """``num_layers`` transformer layers, with a final LayerNorm if they are pre-norm."""

    def __init__(self, settings: TransformerSettings, *, num_layers: int) -> None:
        super().__init__((TransformerLayer(settings) for _ in range(num_layers)), settings.final_norm())


class TokenEmbeddings(Protocol):
    """A module that embeds tokens; its embedding table is ``token``."""

    token: nn.Embedding

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """Embed tokens, given their ids, positions and segments, int64 (T,) each -> (T, E)."""
        ...


class TransformerEncoder(Encoder):
    """Embeddings and a stack of transformer layers, both created by a subclass in ``__init__``.

    If ``attentions`` contains both "bidirectional" and "causal", a batch can choose between the two for each row.

    Args:
        num_heads: number of attention heads per layer.
        hidden_dim: width of the feed-forward layers.
        norm_eps: term added to the variance in layer norms.
        dropout: dropout probability of embeddings and of the branches of each layer; a model that sees its text only a
            few times needs none (Geiping and Goldstein 2022).
        attention_dropout: dropout probability of attention weights, which the flash kernels do not support.
    """

    compiles = True
    reads_padded = True
    embeddings: TokenEmbeddings
    stack: LayerStack

    @property
    def token_embedding(self) -> nn.Embedding:
        """The input embedding, (V, E)."""
        return self.embeddings.token

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return the input of the layers, (T, D)."""
        return self.embeddings(batch.tokens_T, batch.positions_T, batch.segments_T)

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        return EncoderOutput(layers=self.stack(self.embed(batch), batch, output_positions, causal=self.is_causal))
