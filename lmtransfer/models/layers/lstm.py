"""LSTMs with projection over packed sequences.

Shape legend: T tokens of a packed batch (in time-major order inside the recurrence), B or S sequences, D input width,
H cells, P width of the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lmtransfer.data.batch import upload

#: The state of a layer for all sequences: projections (B, P) and cells (B, H).
LstmState = tuple[Tensor, Tensor]


class Recurrence(torch.autograd.Function):
    """The recurrent part of an LSTM with projection (Sak et al. 2014) over sequences in time-major order.

    Its inputs are the contribution of the words to the gates, with biases, in the order input, forget, new, output; the
    state before the first token of each sequence; and the number of sequences that have a token at each time step, in
    descending order. It returns the projections (T, P), and for each sequence the last projection (S, P) and the last
    cells (S, H). No gradient flows into the initial state or out of the final state.

    Clipping is that of ``tf.nn.rnn_cell.LSTMCell``: cells after the update and before the output gate, projections
    before the next time step reads them. Cells and gates are float32 (float64 for float64 inputs). Matrix products have
    the dtype of the matrices.

    The gradients of the two matrices are computed by one product each after the loop; automatic differentiation would
    compute and add one product per time step. With ``compiled``, time steps are compiled, which fuses the operations
    between their two products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gates_T4H: Tensor,
        hidden_SP: Tensor,
        cell_SH: Tensor,
        recurrent_4HP: Tensor,
        project_PH: Tensor,
        batch_sizes: Sequence[int],
        cell_clip: float | None,
        proj_clip: float | None,
        compiled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the time steps."""
        num_tokens, (_, width) = len(gates_T4H), cell_SH.shape
        dtype = recurrent_4HP.dtype
        gates = gates_T4H.clone()
        cells = gates.new_empty(num_tokens, width)
        tanh_output = gates.new_empty(num_tokens, width)
        opened = torch.empty(num_tokens, width, dtype=dtype, device=gates.device)
        outputs = gates.new_empty(num_tokens, len(project_PH))
        hidden, cell = hidden_SP.clone(), cell_SH.clone()
        read: Callable[..., None] = _compiled(_read) if compiled else _read
        start = 0
        for size in batch_sizes:
            now, first = slice(start, start + size), slice(size)
            read(
                *(_rows(part, now) for part in (gates, cells, tanh_output, opened, outputs)),
                *(_rows(part, first) for part in (hidden, cell)),
                recurrent_4HP,
                project_PH,
                cell_clip,
                proj_clip,
            )
            start += size
        ctx.save_for_backward(gates, cells, tanh_output, opened, outputs, hidden_SP, cell_SH, recurrent_4HP, project_PH)
        ctx.batch_sizes, ctx.cell_clip, ctx.proj_clip = tuple(batch_sizes), cell_clip, proj_clip
        ctx.compiled = compiled
        ctx.mark_non_differentiable(hidden, cell)
        return outputs, hidden, cell

    @staticmethod
    def backward(ctx: Any, grad_outputs: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Run the time steps backward, then compute the gradients of the matrices."""
        gates, cells, tanh_output, opened, outputs, hidden_SP, cell_SH, recurrent, project = ctx.saved_tensors
        grad_gates = torch.empty_like(gates)
        grad_projected = grad_outputs.clone()
        grad_hidden, grad_cell = torch.zeros_like(hidden_SP), torch.zeros_like(cell_SH)
        read: Callable[..., None] = _compiled(_read_backward) if ctx.compiled else _read_backward
        start = len(gates)
        for step in range(len(ctx.batch_sizes) - 1, -1, -1):
            size = ctx.batch_sizes[step]
            now, first, start = slice(start - size, start), slice(size), start - size
            cell_before = cells[start - ctx.batch_sizes[step - 1] : start] if step else cell_SH
            read(
                *(_rows(part, now) for part in (gates, cells, tanh_output, outputs, grad_gates, grad_projected)),
                *(_rows(part, first) for part in (cell_before, grad_hidden, grad_cell)),
                recurrent,
                project,
                ctx.cell_clip,
                ctx.proj_clip,
            )
        dtype = recurrent.dtype
        hidden_before = torch.cat([hidden_SP[: ctx.batch_sizes[0]], *_shifted(outputs, ctx.batch_sizes)])
        grad_gates_t = grad_gates.to(dtype).T
        grad_recurrent = grad_gates_t @ hidden_before.to(dtype)
        grad_project = grad_projected.to(dtype).T @ opened
        return grad_gates, None, None, grad_recurrent, grad_project, None, None, None, None


def _rows(tensor: Tensor, rows: slice) -> Tensor:
    """Return rows, detached, because compiled code for a view is valid only for some sizes of the whole tensor."""
    return tensor[rows].detach()


def _read(
    gates_S4H: Tensor,
    cells_SH: Tensor,
    tanh_output_SH: Tensor,
    opened_SH: Tensor,
    outputs_SP: Tensor,
    hidden_SP: Tensor,
    cell_SH: Tensor,
    recurrent_4HP: Tensor,
    project_PH: Tensor,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """Compute one time step of S sequences in place; every tensor except the two matrices is overwritten.

    The first five tensors belong to this time step. ``hidden_SP`` and ``cell_SH`` hold the state before the time step,
    and afterwards the state after it.
    """
    dtype, width = recurrent_4HP.dtype, cell_SH.shape[1]
    gates_S4H += hidden_SP.to(dtype) @ recurrent_4HP.T
    in_forget, new, out = gates_S4H[:, : 2 * width], gates_S4H[:, 2 * width : 3 * width], gates_S4H[:, 3 * width :]
    in_forget.sigmoid_()
    new.tanh_()
    out.sigmoid_()
    torch.mul(gates_S4H[:, width : 2 * width], cell_SH, out=cells_SH)
    cells_SH.addcmul_(gates_S4H[:, :width], new)
    if cell_clip is not None:
        cells_SH.clamp_(-cell_clip, cell_clip)
    torch.tanh(cells_SH, out=tanh_output_SH)
    opened_SH.copy_(out * tanh_output_SH)
    outputs_SP.copy_(opened_SH @ project_PH.T)
    if proj_clip is not None:
        outputs_SP.clamp_(-proj_clip, proj_clip)
    hidden_SP.copy_(outputs_SP)
    cell_SH.copy_(cells_SH)


def _read_backward(
    gates_S4H: Tensor,
    cells_SH: Tensor,
    tanh_SH: Tensor,
    outputs_SP: Tensor,
    grad_gates_S4H: Tensor,
    projected_SP: Tensor,
    before_SH: Tensor,
    grad_hidden_SP: Tensor,
    grad_cell_SH: Tensor,
    recurrent_4HP: Tensor,
    project_PH: Tensor,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """Compute the backward pass of ``_read``, writing the gradients in place.

    ``projected_SP`` is the gradient of the outputs, and ``before_SH`` contains the cells before this time step.
    """
    dtype, width = recurrent_4HP.dtype, grad_cell_SH.shape[1]
    projected_SP += grad_hidden_SP
    if proj_clip is not None:
        projected_SP.masked_fill_(outputs_SP.abs() >= proj_clip, 0.0)
    d_opened = (projected_SP.to(dtype) @ project_PH).to(gates_S4H.dtype)
    i, f, g, o = gates_S4H.split(width, dim=1)
    d_i, d_f, d_g, d_o = grad_gates_S4H.split(width, dim=1)
    grad_cell_SH.addcmul_(d_opened * o, 1 - tanh_SH * tanh_SH)
    if cell_clip is not None:
        grad_cell_SH.masked_fill_(cells_SH.abs() >= cell_clip, 0.0)
    d_o.copy_(d_opened * tanh_SH * (o * (1 - o)))
    d_i.copy_(grad_cell_SH * g * (i * (1 - i)))
    d_g.copy_(grad_cell_SH * i * (1 - g * g))
    d_f.copy_(grad_cell_SH * before_SH * (f * (1 - f)))
    grad_cell_SH *= f
    grad_hidden_SP.copy_(grad_gates_S4H.to(dtype) @ recurrent_4HP)


@cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile the function as one graph for any number of sequences."""
    return torch.compile(function, fullgraph=True, dynamic=True)


def _shifted(outputs_TP: Tensor, batch_sizes: Sequence[int]) -> list[Tensor]:
    """Return, for each time step after the first, the previous outputs of the sequences that continue."""
    steps = outputs_TP.split(list(batch_sizes))
    return [step[:size] for step, size in zip(steps[:-1], batch_sizes[1:], strict=True)]


@dataclass(frozen=True, slots=True)
class TimeMajor:
    """The order in which recurrent layers read packed sequences: all first tokens, then all second tokens, and so on.

    Within a time step, tokens are ordered by the length of their sequence, longest first.

    Attributes:
        order_T: index of the packed token at each place in this order, int64.
        restore_T: place of each packed token in this order, int64.
        sorted_B: indices of the sequences, longest first, int64.
        rank_B: place of each sequence in ``sorted_B``, int64.
        batch_sizes: number of sequences that have a token at each time step.
    """

    order_T: Tensor
    restore_T: Tensor
    sorted_B: Tensor
    rank_B: Tensor
    batch_sizes: tuple[int, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], *, backward: bool = False, device: torch.device | str = "cpu") -> TimeMajor:
        """Compute the order for sequences of these lengths; with ``backward``, from the end of each sequence."""
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

    There are two implementations. The fused one is PyTorch's LSTM, always in float32; it runs on CUDA if nothing is
    clipped. The exact one clips at each time step, as the published ELMo does. A CPU always uses the exact one, which
    is faster there: 2,048 tokens in 64 sequences, input width 128, 512 cells and output width 128, forward and backward
    on one core, take 101 ms, compared with 161 ms with ``nn.LSTM``. Under autocast, its matrix products have autocast's
    dtype (62 ms); sums, gates, cells and clipping remain float32. On CUDA, ``compile`` fuses the operations of a time
    step: according to the compiler's code for a CPU, into 5 kernels forward and 5 backward, instead of 17 and 34.

    The weights are initialized as in TensorFlow: Glorot uniform matrices and biases of 0, except the two biases of the
    forget gate, whose sum is 1.
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
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        into_gates, recurrent, *biases, project = self._weights
        bound = (6.0 / (self.lstm.input_size + self.output_dim + 4 * self.cell_dim)) ** 0.5
        for matrix in (into_gates, recurrent):
            nn.init.uniform_(matrix, -bound, bound)
        nn.init.xavier_uniform_(project)
        for bias in biases:
            nn.init.zeros_(bias)
            bias[self.cell_dim : 2 * self.cell_dim] = 0.5

    def compile(self, *_: Any, **__: Any) -> None:
        """Compile only the time steps of the exact implementation on CUDA, because the layer is not a single graph."""
        self._compiles_on_cuda = True

    def forward(self, inputs_TD: Tensor, order: TimeMajor, state: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """Run the layer.

        Args:
            state: state before the first token of each sequence, in the order of the batch; None for zeros.

        Returns:
            The outputs, (T, P) in time-major order; and the state after the last token of each sequence, without
            gradient.
        """
        with torch.autocast(inputs_TD.device.type, enabled=False):
            if state is None:
                sequences = len(order.sorted_B)
                hidden = inputs_TD.new_zeros(sequences, self.output_dim, dtype=self._dtype)
                cells = inputs_TD.new_zeros(sequences, self.cell_dim, dtype=self._dtype)
            else:
                hidden, cells = (part.to(self._dtype).index_select(0, order.sorted_B) for part in state)
        is_fused = inputs_TD.device.type == "cuda" and self.cell_clip is None and self.proj_clip is None
        path = self._fused if is_fused else self._exact
        outputs_TP, hidden, cells = path(inputs_TD, hidden, cells, order.batch_sizes)
        return outputs_TP, (hidden.index_select(0, order.rank_B), cells.index_select(0, order.rank_B))

    @property
    def _weights(self) -> Sequence[Tensor]:
        """The matrices from inputs to gates and from state to gates, their biases, and the projection of the cells."""
        return self.lstm.all_weights[0]

    @property
    def _dtype(self) -> torch.dtype:
        return self._weights[0].dtype

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
            return Recurrence.apply(
                gates.to(self._dtype) + (input_bias + state_bias),
                hidden,
                cells,
                recurrent.to(dtype),
                project.to(dtype),
                batch_sizes,
                self.cell_clip,
                self.proj_clip,
                self._compiles_on_cuda and device == "cuda",
            )
