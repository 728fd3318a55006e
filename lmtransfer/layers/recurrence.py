"""The recurrence of an LSTM with projection and clipping, with an explicit gradient.

Shape legend: T tokens in time-major order, S sequences, H cells, P width of the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

#: Time steps of one graph of compiled code. Fewer steps of the same sequences are not compiled.
_COMPILED_STEPS = 8


class _Recurrence(torch.autograd.Function):
    """Backpropagation through time that computes only the recurrent part step by step.

    The gradient of each of the two matrices is one product after the loop; automatic differentiation would compute
    and add one product per time step. Cells and gates are float32 (float64 for float64 inputs). The factors of the
    products have the dtype of the matrices.
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
        num_tokens, (_, width) = len(gates_T4H), cell_SH.shape
        dtype = recurrent_4HP.dtype
        gates = gates_T4H.clone()
        cells = gates.new_empty(num_tokens, width)
        tanh_output = gates.new_empty(num_tokens, width)
        opened = torch.empty(num_tokens, width, dtype=dtype, device=gates.device)
        outputs = gates.new_empty(num_tokens, len(project_PH))
        hidden, cell = hidden_SP.clone(), cell_SH.clone()
        for run in _runs(batch_sizes, compiled=compiled):
            of_tokens = (gates, cells, tanh_output, opened, outputs)
            read = _compiled(_read) if run.compiled else _read
            read(
                *(_rows(part, run.tokens) for part in of_tokens),
                *(_rows(part, slice(run.size)) for part in (hidden, cell)),
                recurrent_4HP,
                project_PH,
                num_steps=run.num_steps,
                cell_clip=cell_clip,
                proj_clip=proj_clip,
            )
        ctx.save_for_backward(gates, cells, tanh_output, opened, outputs, hidden_SP, cell_SH, recurrent_4HP, project_PH)
        ctx.batch_sizes, ctx.cell_clip, ctx.proj_clip = tuple(batch_sizes), cell_clip, proj_clip
        ctx.compiled = compiled
        ctx.mark_non_differentiable(hidden, cell)
        return outputs, hidden, cell

    @staticmethod
    def backward(ctx: Any, grad_outputs: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gates, cells, tanh_output, opened, outputs, hidden_SP, cell_SH, recurrent, project = ctx.saved_tensors
        grad_gates = torch.empty_like(gates)
        grad_projected = grad_outputs.clone()
        grad_hidden, grad_cell = torch.zeros_like(hidden_SP), torch.zeros_like(cell_SH)
        for run in reversed(_runs(ctx.batch_sizes, compiled=ctx.compiled)):
            of_tokens = (gates, cells, tanh_output, outputs, grad_gates, grad_projected)
            cell_before = cell_SH if run.before is None else cells[run.before]
            read = _compiled(_read_backward) if run.compiled else _read_backward
            read(
                *(_rows(part, run.tokens) for part in of_tokens),
                *(_rows(part, slice(run.size)) for part in (cell_before, grad_hidden, grad_cell)),
                recurrent,
                project,
                num_steps=run.num_steps,
                cell_clip=ctx.cell_clip,
                proj_clip=ctx.proj_clip,
            )
        dtype = recurrent.dtype
        hidden_before = torch.cat([hidden_SP[: ctx.batch_sizes[0]], *_shifted(outputs, ctx.batch_sizes)])
        grad_gates_t = grad_gates.to(dtype).T
        grad_recurrent = grad_gates_t @ hidden_before.to(dtype)
        grad_project = grad_projected.to(dtype).T @ opened
        return grad_gates, None, None, grad_recurrent, grad_project, None, None, None, None


def _rows(tensor: Tensor, rows: slice) -> Tensor:
    """Rows to read from and to write into.

    They are detached, because compiled code for a view is valid only for some sizes of the whole tensor.
    """
    return tensor[rows].detach()


def _read(
    gates: Tensor,
    cells: Tensor,
    tanh_output: Tensor,
    opened: Tensor,
    outputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    recurrent_4HP: Tensor,
    project_PH: Tensor,
    *,
    num_steps: int,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """Read time steps of the same sequences: writes into all tensors except the matrices.

    The first five hold the tokens of these steps. ``hidden`` and ``cell`` hold the state of these sequences.
    """
    size, width = cell.shape
    dtype, recurrent, project = recurrent_4HP.dtype, recurrent_4HP.T, project_PH.T
    for step in range(num_steps):
        now = slice(step * size, (step + 1) * size)
        z = gates[now]
        z += hidden.to(dtype) @ recurrent
        in_forget, new, out = z[:, : 2 * width], z[:, 2 * width : 3 * width], z[:, 3 * width :]
        in_forget.sigmoid_()
        new.tanh_()
        out.sigmoid_()
        torch.mul(z[:, width : 2 * width], cell, out=cells[now])
        cells[now].addcmul_(z[:, :width], new)
        if cell_clip is not None:
            cells[now].clamp_(-cell_clip, cell_clip)
        torch.tanh(cells[now], out=tanh_output[now])
        opened[now] = out * tanh_output[now]
        outputs[now] = opened[now] @ project
        if proj_clip is not None:
            outputs[now].clamp_(-proj_clip, proj_clip)
        hidden.copy_(outputs[now])
        cell.copy_(cells[now])


def _read_backward(
    gates: Tensor,
    cells: Tensor,
    tanh_output: Tensor,
    outputs: Tensor,
    grad_gates: Tensor,
    grad_projected: Tensor,
    cell_before: Tensor,
    grad_hidden: Tensor,
    grad_cell: Tensor,
    recurrent: Tensor,
    project: Tensor,
    *,
    num_steps: int,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """The backward pass of ``_read``: writes into the gradients; ``cell_before`` holds the cells before these steps."""
    size, width = grad_cell.shape
    dtype = recurrent.dtype
    for step in range(num_steps - 1, -1, -1):
        now = slice(step * size, (step + 1) * size)
        before = cells[(step - 1) * size : step * size] if step else cell_before
        projected = grad_projected[now]
        projected += grad_hidden
        if proj_clip is not None:
            projected.masked_fill_(outputs[now].abs() >= proj_clip, 0.0)
        d_opened = (projected.to(dtype) @ project).to(gates.dtype)
        i, f, g, o = gates[now].split(width, dim=1)
        d_i, d_f, d_g, d_o = grad_gates[now].split(width, dim=1)
        tanh = tanh_output[now]
        grad_cell.addcmul_(d_opened * o, 1 - tanh * tanh)
        if cell_clip is not None:
            grad_cell.masked_fill_(cells[now].abs() >= cell_clip, 0.0)
        d_o.copy_(d_opened * tanh * (o * (1 - o)))
        d_i.copy_(grad_cell * g * (i * (1 - i)))
        d_g.copy_(grad_cell * i * (1 - g * g))
        d_f.copy_(grad_cell * before * (f * (1 - f)))
        grad_cell *= f
        grad_hidden.copy_(grad_gates[now].to(dtype) @ recurrent)


@cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The function as one graph for any number of sequences."""
    return torch.compile(function, fullgraph=True, dynamic=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """Successive time steps of the same sequences.

    Attributes:
        tokens: their tokens, in time-major order.
        before: the tokens of the time step before; None: there is none.
        size: how many sequences.
        num_steps: how many time steps.
        compiled: whether compiled code reads them.
    """

    tokens: slice
    before: slice | None
    size: int
    num_steps: int
    compiled: bool


def _runs(batch_sizes: Sequence[int], *, compiled: bool) -> list[_Run]:
    """The time steps in runs: as long as possible, but ``_COMPILED_STEPS`` long where compiled code reads them."""
    runs: list[_Run] = []
    start, before = 0, None
    for size, group in groupby(batch_sizes):
        steps = len(list(group))
        whole, rest = divmod(steps, _COMPILED_STEPS) if compiled else (0, steps)
        for length in [_COMPILED_STEPS] * whole + [rest] * (rest > 0):
            end = start + length * size
            runs.append(_Run(slice(start, end), before, size, length, compiled and length == _COMPILED_STEPS))
            start, before = end, slice(end - size, end)
    return runs


def _shifted(outputs_TP: Tensor, batch_sizes: Sequence[int]) -> list[Tensor]:
    """For each time step except the first: the outputs of the previous step, for the sequences that continue."""
    steps = outputs_TP.split(list(batch_sizes))
    return [step[:size] for step, size in zip(steps[:-1], batch_sizes[1:], strict=True)]


def recurrence(
    gates_T4H: Tensor,
    hidden_SP: Tensor,
    cell_SH: Tensor,
    recurrent_4HP: Tensor,
    project_PH: Tensor,
    *,
    batch_sizes: Sequence[int],
    cell_clip: float | None = None,
    proj_clip: float | None = None,
    compiled: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM with projection (Sak et al. 2014) over sequences in time-major order.

    It clips like ``tf.nn.rnn_cell.LSTMCell``: cells after the update and before the output gate, projections before
    the next time step reads them. No gradient flows into the initial state or out of the final state.

    Args:
        gates_T4H: the contribution of the inputs to the gates, with biases, in the order input, forget, new, output.
        hidden_SP: projections before the first token.
        cell_SH: cells before the first token.
        recurrent_4HP: matrix from projections to gates; all products have its dtype.
        project_PH: matrix from cells to projection.
        batch_sizes: how many sequences have a token at each time step, descending.
        cell_clip: largest magnitude of a cell; None: no limit.
        proj_clip: largest magnitude of a projection; None: no limit.
        compiled: compile the time steps, where enough of them have the same sequences.

    Returns:
        The projections (T, P); the last projection (S, P) and the last cells (S, H) of each sequence.
    """
    return _Recurrence.apply(
        gates_T4H, hidden_SP, cell_SH, recurrent_4HP, project_PH, batch_sizes, cell_clip, proj_clip, compiled
    )
