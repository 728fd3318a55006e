"""The sum of softmax cross entropies at prediction positions, over the whole vocabulary.

Shape legend: M prediction positions, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmtransfer.models.layers.logit_chunks import (
    CHUNK_LOGITS_ELSEWHERE,
    ReadLogits,
    logit_chunks,
    loss_inputs,
    subtract_targets,
)
from lmtransfer.models.layers.softmax_samples import sample_logits, sample_softmax


class _CrossEntropySum(torch.autograd.Function):
    """Forward computes the gradient of the logits while they are in cache; backward only multiplies matrices."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_M: Tensor,
        weights_M: Tensor,
        read_logits: ReadLogits | None = None,
    ) -> tuple[Tensor, Tensor]:
        dtype = hidden_MD.dtype
        weight = weight_VD.to(dtype)
        bias = None if bias_V is None else bias_V.to(dtype)
        size, vocabulary = len(targets_M), len(weight)
        needs_gradient = any(ctx.needs_input_grad[:3])
        accumulate = torch.promote_types(dtype, torch.float32)
        losses_M = torch.empty(size, dtype=accumulate, device=hidden_MD.device)
        hits_M = torch.empty(size, dtype=torch.bool, device=hidden_MD.device)
        gradient_MV = torch.empty(size if needs_gradient else 0, vocabulary, dtype=dtype, device=hidden_MD.device)
        # Summed here, in the accumulating dtype and in cache: a later sum over the rows would first copy all rows.
        needs_bias = bias_V is not None and ctx.needs_input_grad[2]
        bias_gradient_V = torch.zeros(vocabulary if needs_bias else 0, dtype=accumulate, device=hidden_MD.device)
        for part, losses, best, probabilities in logit_chunks(hidden_MD, weight, bias, targets_M, read_logits):
            losses_M[part], hits_M[part] = losses, best == targets_M[part]
            if needs_gradient:
                subtract_targets(probabilities, targets_M[part])
                torch.mul(probabilities, weights_M[part, None], out=probabilities)
                gradient_MV[part] = probabilities
                if needs_bias:
                    bias_gradient_V += probabilities.sum(0)
        ctx.save_for_backward(hidden_MD, weight, gradient_MV, bias_gradient_V)
        ctx.dtypes = (weight_VD.dtype, None if bias_V is None else bias_V.dtype)
        ctx.mark_non_differentiable(hits_M)
        return (losses_M * weights_M).sum(), hits_M

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        hidden_MD, weight, gradient_MV, bias_gradient_V = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        grad_hidden = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_hidden = (gradient_MV @ weight).mul_(grad_sum)
        if ctx.needs_input_grad[1]:
            grad_weight = (gradient_MV.T @ hidden_MD).to(weight_dtype).mul_(grad_sum)
        if bias_dtype is not None and ctx.needs_input_grad[2]:
            grad_bias = (bias_gradient_V * grad_sum).to(bias_dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None


class _LargeCrossEntropySum(torch.autograd.Function):
    """The same, if the gradient of all logits would fill the memory: forward also multiplies, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_M: Tensor,
        weights_M: Tensor,
        read_logits: ReadLogits | None = None,
    ) -> tuple[Tensor, Tensor]:
        dtype = hidden_MD.dtype
        weight = weight_VD.to(dtype)
        bias = None if bias_V is None else bias_V.to(dtype)
        accumulate = torch.promote_types(dtype, torch.float32)
        needs_gradient = any(ctx.needs_input_grad[:3])
        total = torch.zeros((), dtype=accumulate, device=hidden_MD.device)
        hits_M = torch.empty(len(targets_M), dtype=torch.bool, device=hidden_MD.device)
        grad_hidden = torch.empty_like(hidden_MD) if needs_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=accumulate) if needs_gradient else None
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=accumulate)
        for part, losses, best, probabilities in logit_chunks(hidden_MD, weight, bias, targets_M, read_logits):
            total += (losses * weights_M[part]).sum()
            hits_M[part] = best == targets_M[part]
            if grad_hidden is None or grad_weight is None:
                continue
            subtract_targets(probabilities, targets_M[part])
            probabilities.mul_(weights_M[part, None])
            if grad_bias is not None:
                grad_bias += probabilities.sum(0)
            gradient = probabilities.to(dtype)
            grad_hidden[part] = gradient @ weight
            grad_weight += gradient.T @ hidden_MD[part]
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = (weight_VD.dtype, None if bias_V is None else bias_V.dtype)
        ctx.mark_non_differentiable(hits_M)
        return total, hits_M

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        return (
            grad_hidden * grad_sum if needs_hidden else None,
            (grad_weight * grad_sum).to(weight_dtype) if needs_weight else None,
            (grad_bias * grad_sum).to(bias_dtype) if needs_bias else None,
            None,
            None,
            None,
        )


def cross_entropy_sum(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    weights_M: Tensor,
    *,
    read_logits: ReadLogits | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of softmax cross entropies (nats) of ``hidden @ weight.T + bias``, in chunks that stay in cache.

    Under autocast the logits have its dtype; the softmax and the sum are float32 (float64 for float64 inputs).

    Args:
        hidden_MD: output states at the prediction positions.
        weight_VD: output embedding; may be the tied input embedding.
        bias_V: output bias, or None.
        targets_M: target ids, int64.
        weights_M: weight of the loss at each position (0 for spare places), float.
        read_logits: also reads the logits of each chunk; None: nothing else reads them.

    Returns:
        The weighted sum, a scalar with gradient; and whether each target was the most probable id, bool (M,).
    """
    device = hidden_MD.device.type
    hidden_MD, weight_VD, bias_V = loss_inputs(hidden_MD, weight_VD, bias_V)
    is_large = device != "cpu" and len(hidden_MD) * len(weight_VD) > 2 * CHUNK_LOGITS_ELSEWHERE
    kind = _LargeCrossEntropySum if is_large else _CrossEntropySum
    with torch.autocast(device, enabled=False):
        return kind.apply(hidden_MD, weight_VD, bias_V, targets_M, weights_M, read_logits)


def cross_entropy_sum_and_samples(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    targets_M: Tensor,
    weights_M: Tensor,
    *,
    uniform_M: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """``cross_entropy_sum``, and a sample from the softmax of each position.

    The samples are those of the logits of the loss, which are computed once. A CPU under autocast is the exception:
    there the logits of the samples are computed again, in float32.

    Args:
        hidden_MD: output states at the prediction positions.
        weight_VD: output embedding; may be the tied input embedding.
        bias_V: output bias.
        targets_M: target ids, int64.
        weights_M: weight of the loss at each position (0 for spare places), float.
        uniform_M: one random number per position, in [0, 1); see ``sample_logits``.
        temperature: temperature of the samples, above 0.

    Returns:
        The two results of ``cross_entropy_sum``; and the samples, int64 (M,).
    """
    if hidden_MD.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        samples_M = sample_softmax(hidden_MD, weight_VD, bias_V, uniform_M, temperature=temperature)
        return (*cross_entropy_sum(hidden_MD, weight_VD, bias_V, targets_M, weights_M), samples_M)
    samples_M = torch.empty_like(targets_M)

    def sample(part: slice, logits: Tensor) -> None:
        samples_M[part] = sample_logits(logits, uniform_M[part], temperature=temperature)

    total, hits_M = cross_entropy_sum(hidden_MD, weight_VD, bias_V, targets_M, weights_M, read_logits=sample)
    return total, hits_M, samples_M
