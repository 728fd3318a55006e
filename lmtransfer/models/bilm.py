"""ELMo's bidirectional language model: LSTMs in both directions over the vectors of words, whatever these come from.

Shape legend: T tokens of a packed batch, N read positions, B sequences, P width of a direction, D = 2 P.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.layers.dropout import Dropout
from lmtransfer.layers.lstm import ProjectedLstm, State, TimeMajor
from lmtransfer.models.base import Reads


class LstmStack(nn.Module):
    """The layers of one direction; each adds its input to its output but for the first.

    Args:
        num_layers: LSTM layers.
        dim: width P of inputs and outputs.
        cell_dim: cells of each layer.
        skip_connections: whether layers add their inputs.
        dropout: of each layer's input.
        cell_clip: see ``ProjectedLstm``.
        proj_clip: see ``ProjectedLstm``.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        dim: int,
        cell_dim: int,
        skip_connections: bool,
        dropout: float,
        cell_clip: float | None,
        proj_clip: float | None,
    ) -> None:
        super().__init__()
        self.skip_connections = skip_connections
        self.layers = nn.ModuleList(
            ProjectedLstm(input_dim=dim, cell_dim=cell_dim, output_dim=dim, cell_clip=cell_clip, proj_clip=proj_clip)
            for _ in range(num_layers)
        )
        self.dropout = Dropout(dropout)

    def forward(
        self, words_TP: Tensor, order: TimeMajor, states: tuple[State, ...] | None = None
    ) -> tuple[list[Tensor], tuple[State, ...]]:
        """Read sequences.

        Args:
            words_TP: packed tokens.
            order: of the batch, in this direction.
            states: of each layer, before the sequences' first tokens in this direction; None for zeros.

        Returns:
            Each layer's (T, P) in time-major order, and their states after the sequences' last tokens.
        """
        hidden = words_TP.index_select(0, order.order_T)
        outputs, after = [], []
        for number, layer in enumerate(self.layers):
            inputs = self.dropout(hidden)
            hidden, state = layer(inputs, order, None if states is None else states[number])
            if number and self.skip_connections:
                hidden = hidden + inputs
            outputs.append(hidden)
            after.append(state)
        return outputs, tuple(after)


class BidirectionalLstm(nn.Module):
    """Forward and backward stacks side by side (Peters et al. 2018, section 3.1).

    Args:
        dim: width D of both directions together; even.
        dropout: of each layer's input, and of the last one's output.
        num_layers: see ``LstmStack``, as are the others.
        cell_dim: see there.
        skip_connections: see there.
        cell_clip: see there.
        proj_clip: see there.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        dim: int,
        cell_dim: int,
        skip_connections: bool,
        dropout: float,
        cell_clip: float | None,
        proj_clip: float | None,
    ) -> None:
        super().__init__()
        arguments: dict[str, Any] = {
            "num_layers": num_layers,
            "dim": dim // 2,
            "cell_dim": cell_dim,
            "skip_connections": skip_connections,
            "dropout": dropout,
            "cell_clip": cell_clip,
            "proj_clip": proj_clip,
        }
        self.forwards = LstmStack(**arguments)
        self.backwards = LstmStack(**arguments)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        words_TP: Tensor,
        batch: PackedBatch,
        *,
        forward_states: tuple[State, ...] | None = None,
        backward_states: tuple[State, ...] | None = None,
        reads: Reads | None = None,
    ) -> tuple[tuple[Tensor, ...], tuple[State, ...], tuple[State, ...]]:
        """Read sequences.

        Args:
            words_TP: the words' vectors.
            batch: how long the sequences are.
            forward_states: of the forward layers before the first tokens; None for zeros.
            backward_states: of the backward layers after the last tokens; None for zeros.
            reads: where the last layer is wanted; None for everywhere.

        Returns:
            The word vectors twice and each layer's directions side by side, (T, D) each, the last one (N, D) where
            ``reads`` is given; and the states of the forward layers after the last tokens, and of the backward ones
            before the first tokens.
        """
        device = words_TP.device
        orders = [TimeMajor.of(batch.lengths, backward=backward, device=device) for backward in (False, True)]
        forwards, forward_after = self.forwards(words_TP, orders[0], forward_states)
        backwards, backward_after = self.backwards(words_TP, orders[1], backward_states)
        layers = [torch.cat([words_TP, words_TP], dim=1)]
        places = [order.restore_T for order in orders]
        for number, pair in enumerate(zip(forwards, backwards, strict=True), start=1):
            if number == len(forwards) and reads is not None:
                places = [place.index_select(0, reads.positions_N) for place in places]
            halves = [half.index_select(0, place) for half, place in zip(pair, places, strict=True)]
            layers.append(torch.cat(halves, dim=1))
        layers[-1] = self.dropout(layers[-1])
        return tuple(layers), forward_after, backward_after


def states_of(carry: Any, batch: PackedBatch) -> tuple[State, ...] | None:
    """The states that ``carry_of`` kept, one row for every sequence of the batch: filler starts from zeros."""
    if carry is None:
        return None
    filler = batch.num_sequences - batch.num_real
    return tuple(
        tuple(nn.functional.pad(part, (0, 0, 0, filler)) for part in state)  # type: ignore[misc]
        for state in carry
    )


def carry_of(states: tuple[State, ...], batch: PackedBatch) -> tuple[State, ...]:
    """The states of the real sequences, for the next contiguous batch."""
    return tuple((hidden[: batch.num_real], cells[: batch.num_real]) for hidden, cells in states)
