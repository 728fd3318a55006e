"""Stacks of transformer layers: the basis of the BERT and GPT families.

Shape legend: T tokens, N output positions, D width, E width of the embeddings.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, EncoderOutput, OutputPositions
from lmtransfer.models.layers.attention.layout import Layout, layout_of
from lmtransfer.models.layers.building_blocks import ResidualStream
from lmtransfer.models.layers.transformer import TransformerLayer, TransformerSettings


class TransformerStack(nn.Module):
    """Transformer layers, with a final LayerNorm if they are pre-norm."""

    def __init__(self, settings: TransformerSettings, *, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(settings) for _ in range(num_layers))
        self.final_norm = settings.final_norm()
        self.residual = ResidualStream()

    def forward(
        self,
        embedded_TD: Tensor,
        batch: PackedBatch,
        output_positions: OutputPositions | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Tensor, ...]:
        """Return all layer outputs, (T, D) each, the embeddings first; with ``output_positions``, the last is (N, D).

        In the last layer, attention queries and feed-forward are then computed only at those positions. With 15 % of
        the tokens masked, this saves a sixth of the work of a four-layer encoder, and the result is exact.
        """
        device, embedded_TD = embedded_TD.device, self.residual.begin(embedded_TD)
        layout = layout_of(batch, device, causal=causal)
        outputs, hidden_TD = [embedded_TD], embedded_TD
        *lower, top = self.layers
        for layer in lower:
            hidden_TD = layer(hidden_TD, layout)
            outputs.append(hidden_TD)
        if output_positions is None:
            last = top(hidden_TD, layout)
        elif layout.attends_to_all:
            last = top(
                hidden_TD,
                Layout.of(batch.lengths, output_positions.counts, device=device),
                output_positions.positions_N,
            )
        else:
            last = top(hidden_TD, layout)[output_positions.positions_N]
        return (*outputs, self.residual.end(self.final_norm(last)))


class TokenEmbeddings(Protocol):
    """A module that embeds tokens and has a token embedding ``token``."""

    token: nn.Embedding

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """Embed tokens, given their ids, positions and segments, int64 (T,) each -> (T, E)."""
        ...


class Stack(Protocol):
    """Layers over embedded tokens."""

    def __call__(
        self,
        embedded_TD: Tensor,
        batch: PackedBatch,
        output_positions: OutputPositions | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Tensor, ...]:
        """Return the outputs of all layers; see ``TransformerStack``."""
        ...


class TransformerEncoder(Encoder):
    """Embeddings and a stack of transformer layers: the base class of the BERT and GPT families.

    A subclass creates both in ``__init__``. If ``attentions`` contains both "bidirectional" and "causal", a batch can
    state for each row which of the two applies.
    """

    compiles = True
    reads_padded = True
    embeddings: TokenEmbeddings
    stack: Stack

    @property
    def token_embedding(self) -> nn.Embedding:
        """The input embedding (V, E), for objectives that tie their output to it."""
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
