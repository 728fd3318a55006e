"""ELMo (Peters et al. 2018, https://arxiv.org/abs/1802.05365), over characters as published or over subword ids.

Shape legend: T tokens, C characters of a word, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, SmallCount, SmallWhole
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, OutputPositions
from lmtransfer.models.layers.building_blocks import Dropout
from lmtransfer.models.layers.char_cnn import CharacterCnn, CharActivation
from lmtransfer.models.layers.lstm import LstmState, ProjectedLstm, TimeMajor


@dataclass(frozen=True, slots=True)
class LstmSettings:
    """The settings of the layers in both directions.

    Attributes:
        dim: width D of both directions together; even.
        cell_dim: number of cells in each layer and direction; more than D / 2, the width to which they are projected.
    """

    dim: int
    num_layers: int
    cell_dim: int
    skip_connections: bool
    dropout: float
    cell_clip: float | None
    proj_clip: float | None

    def __post_init__(self) -> None:
        if self.dim % 2:
            raise ConfigError(
                f"model.dim={self.dim} is odd, but must be twice the width of a direction: use {self.dim + 1}"
            )
        if self.cell_dim <= self.dim // 2:
            raise ConfigError(
                f"model.cell_dim={self.cell_dim} must be greater than the width of a direction (model.dim / 2 = "
                f"{self.dim // 2}), to which the cells are projected: use more cells, such as {self.dim * 2}"
            )


class LstmStack(nn.Module):
    """The layers of one direction."""

    def __init__(self, settings: LstmSettings) -> None:
        super().__init__()
        width = settings.dim // 2
        self.skip_connections = settings.skip_connections
        self.layers = nn.ModuleList(
            ProjectedLstm(
                input_dim=width,
                cell_dim=settings.cell_dim,
                output_dim=width,
                cell_clip=settings.cell_clip,
                proj_clip=settings.proj_clip,
            )
            for _ in range(settings.num_layers)
        )
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, words_TP: Tensor, order: TimeMajor, states: tuple[LstmState, ...] | None = None
    ) -> tuple[list[Tensor], tuple[LstmState, ...]]:
        """Run the layers.

        Returns:
            The output of each layer, (T, P) in time-major order; and the state of each layer after the last token of
            each sequence.
        """
        hidden = words_TP.index_select(0, order.order_T)
        outputs, after = [], []
        for depth, layer in enumerate(self.layers):
            inputs = self.dropout(hidden)
            hidden, state = layer(inputs, order, None if states is None else states[depth])
            if depth and self.skip_connections:
                hidden = hidden + inputs
            outputs.append(hidden)
            after.append(state)
        return outputs, tuple(after)


class BidirectionalLstm(nn.Module):
    """A forward and a backward stack of LSTM layers side by side (Peters et al. 2018, section 3.1)."""

    def __init__(self, settings: LstmSettings) -> None:
        super().__init__()
        self.forwards = LstmStack(settings)
        self.backwards = LstmStack(settings)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        words_TP: Tensor,
        batch: PackedBatch,
        *,
        forward_states: tuple[LstmState, ...] | None = None,
        backward_states: tuple[LstmState, ...] | None = None,
        output_positions: OutputPositions | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[LstmState, ...], tuple[LstmState, ...]]:
        """Run both stacks.

        Returns:
            The outputs: two copies of the word vectors, then both directions of each LSTM layer side by side, (T, D)
            each; with ``output_positions``, the last output is (N, D). Then the final states of the forward layers, and
            the final states of the backward layers, at the first tokens.
        """
        device = words_TP.device
        orders = [TimeMajor.of(batch.lengths, backward=backward, device=device) for backward in (False, True)]
        forwards, forward_after = self.forwards(words_TP, orders[0], forward_states)
        backwards, backward_after = self.backwards(words_TP, orders[1], backward_states)
        layers = [torch.cat([words_TP, words_TP], dim=1)]
        places = [order.restore_T for order in orders]
        for number, pair in enumerate(zip(forwards, backwards, strict=True), start=1):
            if number == len(forwards) and output_positions is not None:
                places = [place.index_select(0, output_positions.positions_N) for place in places]
            halves = [half.index_select(0, place) for half, place in zip(pair, places, strict=True)]
            layers.append(torch.cat(halves, dim=1))
        layers[-1] = self.dropout(layers[-1])
        return tuple(layers), forward_after, backward_after


class BilmEncoder(Encoder):
    """Word vectors, then LSTMs in both directions: the base class of ELMo's encoders.

    Layer 0 contains each word vector twice, so that all layers have the width D = 2 P. The recurrent state consists of
    the states of the forward layers. A subclass creates ``lstms`` in ``__init__``.
    """

    attention = "concatenated"
    compiles = True
    family_head = FamilyHead(token="mean")
    lstms: BidirectionalLstm

    def words(self, batch: PackedBatch) -> Tensor:
        """Return the vector of each word, (T, P)."""
        raise NotImplementedError

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        layers, states, _ = self.lstms(
            self.words(batch),
            batch,
            forward_states=_states_of(recurrent_state, batch),
            output_positions=output_positions,
        )
        return EncoderOutput(layers=layers, recurrent_state=_carry_of(states, batch))


def _states_of(recurrent_state: Any, batch: PackedBatch) -> tuple[LstmState, ...] | None:
    """Return the states from ``_carry_of`` for all sequences of the batch; filler sequences start from zeros."""
    if recurrent_state is None:
        return None
    filler = batch.num_sequences - batch.num_real
    return tuple(
        tuple(nn.functional.pad(part, (0, 0, 0, filler)) for part in state)  # type: ignore[misc]
        for state in recurrent_state
    )


def _carry_of(states: tuple[LstmState, ...], batch: PackedBatch) -> tuple[LstmState, ...]:
    """Return the states of the real sequences for the next contiguous batch."""
    return tuple((hidden[: batch.num_real], cells[: batch.num_real]) for hidden, cells in states)


class ElmoEncoder(BilmEncoder):
    """A character CNN over words, then LSTMs in both directions.

    This differs from the published training (allenai/bilm-tf). There, each direction reads its own stream (the backward
    stream consists of reversed sentences), and both carry their states from window to window. Here, both read the same
    window, and the backward direction starts from a zero state at the end of the window, because the following text
    has not been read yet.

    Args:
        vocab_size: number of words that the objective predicts; the encoder can read any word.
        cell_clip: maximum magnitude of a cell, 3 in the published models; None for no limit, which allows the fused
            LSTM on CUDA.
        filters: pairs of the width and the number of character filters.
        proj_clip: maximum magnitude of a projected state, with cell_clip.
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
        settings = LstmSettings(dim, num_layers, cell_dim, skip_connections, dropout, cell_clip, proj_clip)
        self.characters = CharacterCnn(
            char_dim=char_dim, filters=filters, num_highway=num_highway, output_dim=dim // 2, activation=activation
        )
        self.lstms = BidirectionalLstm(settings)

    @override
    def input_rows(self, token: int, character_ids: np.ndarray | None) -> tuple[nn.Embedding, list[int]]:
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
        return self.characters


class ElmoSubwordEncoder(BilmEncoder):
    """``ElmoEncoder`` with a token embedding of width D / 2 instead of characters, a variant of our own.

    The embedding is initialized from a normal distribution of variance 2 / D, which also suits an output matrix.
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
        settings = LstmSettings(dim, num_layers, cell_dim, skip_connections, dropout, cell_clip, proj_clip)
        self.token_embedding = nn.Embedding(vocab_size, dim // 2)
        nn.init.normal_(self.token_embedding.weight, std=(dim // 2) ** -0.5)
        self.lstms = BidirectionalLstm(settings)

    @override
    def words(self, batch: PackedBatch) -> Tensor:
        return self.token_embedding(batch.tokens_T)
