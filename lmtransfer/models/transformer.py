"""Encoders that are a stack of transformer layers: what BERT and GPT share.

Shape legend: T tokens, N read positions, D width, E width of the embeddings.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.layers.attention.layout import Layout
from lmtransfer.layers.transformer import TransformerLayer, TransformerSettings
from lmtransfer.models.base import Encoder, EncoderOutput, OutputPositions
from lmtransfer.models.padded import layout_of


class TransformerStack(nn.Module):
    """Transformer layers, and a last LayerNorm where they are pre-norm.

    Args:
        settings: of the layers.
        num_layers: how many.
    """

    def __init__(self, settings: TransformerSettings, *, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(settings) for _ in range(num_layers))
        self.final_norm = settings.final_norm()

    def forward(
        self,
        embedded_TD: Tensor,
        batch: PackedBatch,
        output_positions: OutputPositions | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Tensor, ...]:
        """All layers' outputs, (T, D) each, the embeddings first; the last is (N, D) at ``output_positions`` alone.

        The last layer's attention queries and feed-forward are then computed at those positions only: with 15 % of
        the tokens masked this saves a sixth of a four-layer encoder's work, exactly.
        """
        device = embedded_TD.device
        layout = layout_of(batch, device, causal=causal)
        outputs, hidden_TD = [embedded_TD], embedded_TD
        *lower, top = self.layers
        for layer in lower:
            hidden_TD = layer(hidden_TD, layout)
            outputs.append(hidden_TD)
        if output_positions is None:
            last = top(hidden_TD, layout)
        elif layout.sees_all:
            last = top(
                hidden_TD,
                Layout.of(batch.lengths, output_positions.counts, device=device),
                output_positions.positions_N,
            )
        else:
            last = top(hidden_TD, layout)[output_positions.positions_N]
        return (*outputs, self.final_norm(last))


class TokenEmbeddings(Protocol):
    """Embeddings of a batch, (T, E), with their table of tokens."""

    token: nn.Embedding

    def __call__(self, batch: PackedBatch) -> Tensor:
        """(T, E)."""
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
        """All layers' outputs; see ``TransformerStack``."""
        ...


class TransformerEncoder(Encoder):
    """Embeddings, and a stack of transformer layers over them: what BERT's and GPT's families share.

    A subclass makes both in ``__init__``. One that names both in ``attentions`` can be read in either way, row by
    row.

    Attributes:
        embeddings: a module, (batch) -> (T, E).
        stack: a module over (T, D).
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
        """What the layers read, (T, D)."""
        return self.embeddings(batch)

    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        """See ``Encoder``."""
        self.check_length(batch)
        return EncoderOutput(layers=self.stack(self.embed(batch), batch, output_positions, causal=self.is_causal))
