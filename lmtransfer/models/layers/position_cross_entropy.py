"""The softmax cross entropy of each prediction position separately.

Shape legend: M prediction positions, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmtransfer.models.layers.logit_chunks import logit_chunks, loss_inputs, subtract_targets


class _CrossEntropies(torch.autograd.Function):
    """The cross entropy of each position separately; the weights of the positions are known only in backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype = hidden_MD.dtype
        weight = weight_VD.to(dtype)
        bias = None if bias_V is None else bias_V.to(dtype)
        size, vocabulary = len(targets_M), len(weight)
        needs_gradient = any(ctx.needs_input_grad[:3])
        losses_M = torch.empty(size, dtype=torch.promote_types(dtype, torch.float32), device=hidden_MD.device)
        best_M = torch.empty_like(targets_M)
        gradient_MV = torch.empty(size if needs_gradient else 0, vocabulary, dtype=dtype, device=hidden_MD.device)
        for part, losses, best, probabilities in logit_chunks(hidden_MD, weight, bias, targets_M):
            losses_M[part], best_M[part] = losses, best
            if needs_gradient:
                subtract_targets(probabilities, targets_M[part])
                gradient_MV[part] = probabilities
        ctx.save_for_backward(hidden_MD, weight, gradient_MV)
        ctx.dtypes = (weight_VD.dtype, None if bias_V is None else bias_V.dtype)
        ctx.mark_non_differentiable(best_M)
        return losses_M, best_M

    @staticmethod
    def backward(ctx: Any, grad_M: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        hidden_MD, weight, gradient_MV = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        factor_M = grad_M.to(gradient_MV.dtype)
        grad_hidden = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_hidden = (gradient_MV @ weight).mul_(factor_M[:, None])
        if ctx.needs_input_grad[1]:
            grad_weight = (gradient_MV.T @ (hidden_MD * factor_M[:, None])).to(weight_dtype)
        if bias_dtype is not None and ctx.needs_input_grad[2]:
            grad_bias = (gradient_MV.T @ factor_M).to(bias_dtype)
        return grad_hidden, grad_weight, grad_bias, None


def cross_entropies(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_M: Tensor
) -> tuple[Tensor, Tensor]:
    """The softmax cross entropy (nats) of each position; use ``cross_entropy_sum`` if only the sum is needed.

    Args:
        hidden_MD: output states at the prediction positions.
        weight_VD: output embedding; may be the tied input embedding.
        bias_V: output bias, or None.
        targets_M: target ids, int64.

    Returns:
        The cross entropies with gradient, (M,), in the dtype of ``cross_entropy_sum``; and the most probable ids,
        int64 (M,).
    """
    hidden_MD, weight_VD, bias_V = loss_inputs(hidden_MD, weight_VD, bias_V)
    with torch.autocast(hidden_MD.device.type, enabled=False):
        return _CrossEntropies.apply(hidden_MD, weight_VD, bias_V, targets_M)
