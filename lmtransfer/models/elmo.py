"""ELMo (Peters et al. 2018, https://arxiv.org/abs/1802.05365).

Shape legend: T tokens, C characters of a word, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.layers.char_cnn import CharacterCnn, CharActivation
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, Reads
from lmtransfer.models.bilm import BidirectionalLstm, carry_of, states_of
from lmtransfer.models.transformer import check_length


class ElmoEncoder(Encoder):
    """A character CNN over words, then LSTMs in both directions.

    Layer 0 is the word vector twice, so that all layers have the width D = 2 P. A carry holds the forward layers'
    states. Where we differ from the published training (allenai/bilm-tf): there both directions read streams of their
    own, the backward one made of reversed sentences, and both carry their states from window to window; here both read
    the same window, and the backward direction starts fresh at its end, since what follows is not read yet.

    Args:
        vocab_size: words that the objective's softmax tells apart; the encoder reads any word.
        dim: width D of both directions together; even.
        num_layers: LSTM layers of each direction.
        cell_dim: cells of each layer and direction, projected to D / 2.
        char_dim: width of a character embedding.
        filters: (width in characters, number of filters) of each convolution.
        num_highway: highway layers over the convolutions.
        activation: of the convolutions.
        skip_connections: every layer but the first adds its input to its output.
        max_length: longest sequence in tokens.
        dropout: of each layer's input, and of the last one's output.
        cell_clip: largest magnitude of a cell, 3 in the published models; None: no limit, and the fused LSTM on CUDA.
        proj_clip: the same of a projection.

    Raises:
        ConfigError: ``dim`` is odd, or a direction is not narrower than its cells.
    """

    attention = "concatenated"
    family_head = FamilyHead(token="mean")
    token_embedding = None
    reads_characters = True

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        num_layers: int,
        cell_dim: int,
        char_dim: int,
        filters: Sequence[Sequence[int]],
        num_highway: int,
        activation: CharActivation = "relu",
        skip_connections: bool = True,
        max_length: int = 512,
        dropout: float = 0.1,
        cell_clip: float | None = 3.0,
        proj_clip: float | None = 3.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        check_widths(dim, cell_dim)
        self.characters = CharacterCnn(
            char_dim=char_dim, filters=filters, num_highway=num_highway, output_dim=dim // 2, activation=activation
        )
        self.lstms = BidirectionalLstm(
            num_layers=num_layers,
            dim=dim,
            cell_dim=cell_dim,
            skip_connections=skip_connections,
            dropout=dropout,
            cell_clip=cell_clip,
            proj_clip=proj_clip,
        )

    def input_rows(self, token: int, spelling: np.ndarray | None) -> tuple[nn.Embedding, list[int]]:
        """See ``Encoder``; the rows of its characters."""
        assert spelling is not None
        return self.characters.embedding, spelling.tolist()

    def forward(self, batch: PackedBatch, carry: Any = None, reads: Reads | None = None) -> EncoderOutput:
        """Encode; see ``models.base.Encoder``.

        Raises:
            DataError: a sequence is too long, or the batch holds no characters.
        """
        check_length(batch, self.max_length)
        if batch.chars_TC is None:
            raise DataError("ElmoEncoder reads characters and this batch has none: use tokenizer=words")
        words_TP = self.characters(batch.chars_TC)
        layers, states, _ = self.lstms(words_TP, batch, forward_states=states_of(carry, batch), reads=reads)
        return EncoderOutput(layers=layers, carry=carry_of(states, batch))


def check_widths(dim: int, cell_dim: int) -> None:
    """Refuse widths that make no biLM.

    Raises:
        ConfigError: ``dim`` is odd, or a direction is not narrower than its cells.
    """
    if dim % 2:
        raise ConfigError(f"model.dim={dim} is odd: it is the width of two directions side by side; use {dim + 1}")
    if cell_dim <= dim // 2:
        raise ConfigError(
            f"model.cell_dim={cell_dim} is no more than a direction's width (model.dim / 2 = {dim // 2}), to which "
            f"the cells are projected: use more cells, such as {dim * 2}"
        )
