"""ELMo (Peters et al. 2018, https://arxiv.org/abs/1802.05365), over characters as published or over subword ids.

Shape legend: T tokens, C characters of a word, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, SmallCount, SmallWhole
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import DataError
from lmtransfer.models.bilm import BidirectionalLstm, BilmEncoder, LstmSettings
from lmtransfer.models.layers.char_cnn import CharacterCnn, CharActivation


class ElmoEncoder(BilmEncoder):
    """A character CNN over words, then LSTMs in both directions.

    Where we differ from the published training (allenai/bilm-tf): there, each direction reads its own stream (the
    backward stream consists of reversed sentences), and both carry their states from window to window. Here, both read
    the same window, and the backward direction starts from a zero state at the end of the window, because the following
    text has not been read yet.

    Args:
        vocab_size: number of words in the softmax of the objective; the encoder can read any word.
        dim: width D of both directions together; even.
        num_layers: number of LSTM layers of each direction.
        cell_dim: number of cells of each layer and direction; they are projected to D / 2.
        char_dim: width of a character embedding.
        filters: (width in characters, number of filters) of each convolution.
        num_highway: number of highway layers over the convolutions.
        activation: activation of the convolutions.
        skip_connections: every layer but the first adds its input to its output.
        max_length: maximum sequence length in tokens.
        dropout: dropout probability of the input of each layer and of the output of the last layer.
        cell_clip: largest magnitude of a cell, 3 in the published models; None for no limit, and the fused LSTM on
            CUDA.
        proj_clip: largest magnitude of a projection, with the same values.

    Raises:
        ConfigError: ``dim`` is odd, or half of ``dim`` is not less than ``cell_dim``.
    """

    token_embedding = None
    reads_characters = True

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        cell_dim: Count,
        char_dim: Count,
        filters: Sequence[Sequence[int]],
        num_highway: SmallWhole,
        activation: CharActivation = "relu",
        skip_connections: bool = True,
        max_length: Count = 512,
        dropout: DropoutProb = 0.1,
        cell_clip: float | None = 3.0,
        proj_clip: float | None = 3.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        settings = LstmSettings(
            dim=dim,
            num_layers=num_layers,
            cell_dim=cell_dim,
            skip_connections=skip_connections,
            dropout=dropout,
            cell_clip=cell_clip,
            proj_clip=proj_clip,
        )
        self.characters = CharacterCnn(
            char_dim=char_dim, filters=filters, num_highway=num_highway, output_dim=dim // 2, activation=activation
        )
        self.lstms = BidirectionalLstm(settings)

    @override
    def input_rows(self, token: int, character_ids: np.ndarray | None) -> tuple[nn.Embedding, list[int]]:
        """Return the table of characters and the rows of the characters of the token."""
        assert character_ids is not None
        return self.characters.embedding, character_ids.tolist()

    @override
    def words(self, batch: PackedBatch) -> Tensor:
        if batch.chars_TC is None:
            raise DataError("ElmoEncoder reads characters and this batch has none: use tokenizer=words")
        return self.characters(batch.chars_TC)

    @property
    @override
    def word_network(self) -> CharacterCnn:
        """The character CNN, whose vectors have the width D / 2."""
        return self.characters


class ElmoSubwordEncoder(BilmEncoder):
    """``ElmoEncoder`` with a token embedding of width D / 2 instead of characters; this variant is our own.

    The embedding is initialized from a normal distribution of variance 2 / D, so that it can also be the output matrix.

    Args:
        vocab_size: number of rows of the token embedding.
        dim: width D of both directions together; even.
        num_layers: number of LSTM layers of each direction.
        cell_dim: number of cells of each layer and direction; they are projected to D / 2.
        skip_connections: every layer but the first adds its input to its output.
        max_length: maximum sequence length in tokens.
        dropout: dropout probability of the input of each layer and of the output of the last layer.
        cell_clip: largest magnitude of a cell; None for no limit, and the fused LSTM on CUDA.
        proj_clip: largest magnitude of a projection; None for no limit.

    Raises:
        ConfigError: ``dim`` is odd, or half of ``dim`` is not less than ``cell_dim``.
    """

    token_embedding: nn.Embedding

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        cell_dim: Count,
        skip_connections: bool = True,
        max_length: Count = 512,
        dropout: DropoutProb = 0.1,
        cell_clip: float | None = None,
        proj_clip: float | None = None,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        settings = LstmSettings(
            dim=dim,
            num_layers=num_layers,
            cell_dim=cell_dim,
            skip_connections=skip_connections,
            dropout=dropout,
            cell_clip=cell_clip,
            proj_clip=proj_clip,
        )
        self.token_embedding = nn.Embedding(vocab_size, dim // 2)
        nn.init.normal_(self.token_embedding.weight, std=(dim // 2) ** -0.5)
        self.lstms = BidirectionalLstm(settings)

    @override
    def words(self, batch: PackedBatch) -> Tensor:
        return self.token_embedding(batch.tokens_T)
