"""The recurrence of an LSTM with projection and clipping, with an explicit gradient.

Shape legend: T tokens in time-major order, S sequences, H cells, P width of the projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_tokens, (_, width) = len(gates_T4H), cell_SH.shape
        dtype = recurrent_4HP.dtype
        gates = gates_T4H.clone()
        cells = gates.new_empty(num_tokens, width)
        tanh_output = gates.new_empty(num_tokens, width)
        opened = torch.empty(num_tokens, width, dtype=dtype, device=gates.device)
        outputs = gates.new_empty(num_tokens, len(project_PH))
        hidden, cell = hidden_SP.clone(), cell_SH.clone()
        recurrent, project = recurrent_4HP.T, project_PH.T
        start = 0
        for size in batch_sizes:
            now = slice(start, start + size)
            z = gates[now]
            z += hidden[:size].to(dtype) @ recurrent
            in_forget, new, out = z[:, : 2 * width], z[:, 2 * width : 3 * width], z[:, 3 * width :]
            in_forget.sigmoid_()
            new.tanh_()
            out.sigmoid_()
            torch.mul(z[:, width : 2 * width], cell[:size], out=cells[now])
            cells[now].addcmul_(z[:, :width], new)
            if cell_clip is not None:
                cells[now].clamp_(-cell_clip, cell_clip)
            torch.tanh(cells[now], out=tanh_output[now])
            opened[now] = out * tanh_output[now]
            outputs[now] = opened[now] @ project
            if proj_clip is not None:
                outputs[now].clamp_(-proj_clip, proj_clip)
            hidden[:size], cell[:size] = outputs[now], cells[now]
            start += size
        ctx.save_for_backward(gates, cells, tanh_output, opened, outputs, hidden_SP, cell_SH, recurrent_4HP, project_PH)
        ctx.batch_sizes, ctx.cell_clip, ctx.proj_clip = tuple(batch_sizes), cell_clip, proj_clip
        ctx.mark_non_differentiable(hidden, cell)
        return outputs, hidden, cell

    @staticmethod
    def backward(ctx: Any, grad_outputs: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gates, cells, tanh_output, opened, outputs, hidden_SP, cell_SH, recurrent, project = ctx.saved_tensors
        dtype, width = recurrent.dtype, cells.shape[1]
        grad_gates = torch.empty_like(gates)
        grad_projected = grad_outputs.clone()
        grad_hidden, grad_cell = torch.zeros_like(hidden_SP), torch.zeros_like(cell_SH)
        start = len(gates)
        for step in range(len(ctx.batch_sizes) - 1, -1, -1):
            size = ctx.batch_sizes[step]
            now, start = slice(start - size, start), start - size
            before = slice(start - ctx.batch_sizes[step - 1], start) if step else None
            cell_before = cell_SH[:size] if before is None else cells[before][:size]
            projected = grad_projected[now]
            projected += grad_hidden[:size]
            if ctx.proj_clip is not None:
                projected.masked_fill_(outputs[now].abs() >= ctx.proj_clip, 0.0)
            d_opened = (projected.to(dtype) @ project).to(gates.dtype)
            i, f, g, o = gates[now].split(width, dim=1)
            d_i, d_f, d_g, d_o = grad_gates[now].split(width, dim=1)
            tanh = tanh_output[now]
            d_cell = grad_cell[:size]
            d_cell.addcmul_(d_opened * o, 1 - tanh * tanh)
            if ctx.cell_clip is not None:
                d_cell.masked_fill_(cells[now].abs() >= ctx.cell_clip, 0.0)
            torch.mul(d_opened * tanh, o * (1 - o), out=d_o)
            torch.mul(d_cell * g, i * (1 - i), out=d_i)
            torch.mul(d_cell * i, 1 - g * g, out=d_g)
            torch.mul(d_cell * cell_before, f * (1 - f), out=d_f)
            d_cell *= f
            grad_hidden[:size] = grad_gates[now].to(dtype) @ recurrent
        hidden_before = torch.cat([hidden_SP[: ctx.batch_sizes[0]], *_shifted(outputs, ctx.batch_sizes)])
        grad_gates_t = grad_gates.to(dtype).T
        grad_recurrent = grad_gates_t @ hidden_before.to(dtype)
        grad_project = grad_projected.to(dtype).T @ opened
        return grad_gates, None, None, grad_recurrent, grad_project, None, None, None


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

    Returns:
        The projections (T, P); the last projection (S, P) and the last cells (S, H) of each sequence.
    """
    return _Recurrence.apply(
        gates_T4H, hidden_SP, cell_SH, recurrent_4HP, project_PH, batch_sizes, cell_clip, proj_clip
    )
