"""LSTMs with projection over packed sequences.

Shape legend: T tokens of a packed batch, B sequences, D input width, H cells, P width of the projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lmtransfer.data.batch import upload
from lmtransfer.models.layers.recurrence import recurrence

#: State of all sequences in one direction: projections (B, P) and cells (B, H).
State = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class TimeMajor:
    """The order in which recurrent layers read packed sequences: all first tokens, then all second tokens, and so on.

    Within a time step the tokens are in the order of their sequences, longest sequence first.

    Attributes:
        order_T: index of the packed token at each place of that order, int64.
        restore_T: place of each packed token in that order, int64.
        sorted_B: indices of the sequences, longest first, int64.
        rank_B: place of each sequence in ``sorted_B``, int64.
        batch_sizes: how many sequences have a token at each time step.
    """

    order_T: Tensor
    restore_T: Tensor
    sorted_B: Tensor
    rank_B: Tensor
    batch_sizes: tuple[int, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], *, backward: bool = False, device: torch.device | str = "cpu") -> TimeMajor:
        """The order for sequences of these lengths; with ``backward``, each sequence is read from its end."""
        lengths_B = np.asarray(lengths, dtype=np.int64)
        sorted_B = np.argsort(-lengths_B, kind="stable")
        rank_B = np.argsort(sorted_B)
        starts_B = np.cumsum(lengths_B) - lengths_B
        owner_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
        time_T = np.arange(len(owner_T)) - starts_B[owner_T]
        if backward:
            time_T = lengths_B[owner_T] - 1 - time_T
        order_T = np.lexsort((rank_B[owner_T], time_T))
        order, restore, ranked, rank = (
            upload(array, device) for array in (order_T, np.argsort(order_T), sorted_B, rank_B)
        )
        return cls(order, restore, ranked, rank, tuple(np.bincount(time_T).tolist()))


class ProjectedLstm(nn.Module):
    """One direction of an LSTM layer whose output is a projection of its cells (Sak et al. 2014, section 2).

    There are two paths. The fused path is PyTorch's LSTM; it runs on CUDA if nothing is clipped. The exact path clips
    at each time step, as the published ELMo does. On a CPU the exact path also runs without clipping, because it is
    faster there: 2,048 tokens in 64 sequences, input width 128, 512 cells, output width 128, forward and backward on
    one core take 101 ms, and 161 ms with ``nn.LSTM``. The fused path computes in float32 at every precision. On
    the exact path under autocast, the factors of the matrix products have the dtype of autocast (62 ms). Sums, gates,
    cells and clipping stay float32. On CUDA ``compile`` fuses them: by the compiler's code for a CPU, a time step then
    starts 5 kernels forward and 5 backward, instead of 17 and 34.

    The weights are initialised as in TensorFlow: Glorot uniform matrices and biases 0, except the two biases of the
    forget gate, whose sum is 1.

    Args:
        input_dim: width D of the inputs.
        cell_dim: cells H.
        output_dim: width P of the projection; less than H.
        cell_clip: largest magnitude of a cell; None: no limit.
        proj_clip: largest magnitude of an output; None: no limit.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        cell_dim: int,
        output_dim: int,
        cell_clip: float | None = None,
        proj_clip: float | None = None,
    ) -> None:
        super().__init__()
        self.cell_dim, self.output_dim, self.cell_clip, self.proj_clip = cell_dim, output_dim, cell_clip, proj_clip
        self.lstm = nn.LSTM(input_dim, cell_dim, proj_size=output_dim)
        self._compiles_on_cuda = False
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the weights at random."""
        into_gates, recurrent, *biases, project = self._weights
        bound = (6.0 / (self.lstm.input_size + self.output_dim + 4 * self.cell_dim)) ** 0.5
        for matrix in (into_gates, recurrent):
            nn.init.uniform_(matrix, -bound, bound)
        nn.init.xavier_uniform_(project)
        for bias in biases:
            nn.init.zeros_(bias)
            bias[self.cell_dim : 2 * self.cell_dim] = 0.5

    def compile(self, *_: Any, **__: Any) -> None:
        """Compile the time steps of the exact path on CUDA, and nothing else: the layer itself is not one graph."""
        self._compiles_on_cuda = True

    def forward(self, inputs_TD: Tensor, order: TimeMajor, state: State | None = None) -> tuple[Tensor, State]:
        """Read sequences.

        Args:
            inputs_TD: the tokens in the time-major order ``order``.
            order: the order of the batch, forward or backward.
            state: state of each sequence before its first token (sequences in the order of the batch); None: zeros.

        Returns:
            The outputs (T, P), in time-major order; and the state after the last token of each sequence, without
            gradient.
        """
        with torch.autocast(inputs_TD.device.type, enabled=False):
            if state is None:
                sequences = len(order.sorted_B)
                hidden = inputs_TD.new_zeros(sequences, self.output_dim, dtype=self._dtype)
                cells = inputs_TD.new_zeros(sequences, self.cell_dim, dtype=self._dtype)
            else:
                hidden, cells = (part.to(self._dtype).index_select(0, order.sorted_B) for part in state)
        path = self._fused if self._has_fused(inputs_TD) else self._exact
        outputs_TP, hidden, cells = path(inputs_TD, hidden, cells, order.batch_sizes)
        return outputs_TP, (hidden.index_select(0, order.rank_B), cells.index_select(0, order.rank_B))

    @property
    def _weights(self) -> Sequence[Tensor]:
        """Matrix from inputs to gates, matrix from state to gates, the biases of both, matrix from cells to state."""
        return self.lstm.all_weights[0]

    @property
    def _dtype(self) -> torch.dtype:
        return self._weights[0].dtype

    def _has_fused(self, inputs: Tensor) -> bool:
        return inputs.device.type == "cuda" and self.cell_clip is None and self.proj_clip is None

    def _fused(
        self, inputs_TD: Tensor, hidden: Tensor, cells: Tensor, batch_sizes: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(inputs_TD.device.type, enabled=False):
            packed = PackedSequence(inputs_TD.to(self._dtype), torch.tensor(batch_sizes))
            outputs, (hidden, cells) = self.lstm(packed, (hidden[None], cells[None]))
        return outputs.data, hidden[0].detach(), cells[0].detach()

    def _exact(
        self, inputs_TD: Tensor, hidden: Tensor, cells: Tensor, batch_sizes: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        into_gates, recurrent, input_bias, state_bias, project = self._weights
        dtype, device = self._dtype, inputs_TD.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            gates = nn.functional.linear(inputs_TD.to(dtype), into_gates.to(dtype))
            return recurrence(
                gates.to(self._dtype) + (input_bias + state_bias),
                hidden,
                cells,
                recurrent.to(dtype),
                project.to(dtype),
                batch_sizes=batch_sizes,
                cell_clip=self.cell_clip,
                proj_clip=self.proj_clip,
                compiled=self._compiles_on_cuda and device == "cuda",
            )
