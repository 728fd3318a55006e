"""Softmax cross entropy at prediction positions, over the vocabulary or a sample of it, computed in chunks.

Shape legend: M prediction positions, S samples, V vocabulary, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lmtransfer.layers.softmax_samples import sample_logits, sample_softmax

#: Reads the logits of a chunk, (m, V), given the slice of its positions; it may not change them.
ReadLogits = Callable[[slice, Tensor], None]

#: Number of logits of one chunk: 1 MiB in bfloat16, which stays in the second-level cache of a CPU.
_CHUNK_LOGITS = 1 << 19
#: The same on other devices, for which large chunks are fast: 256 MiB in bfloat16, and 512 MiB for the probabilities.
_CHUNK_LOGITS_ELSEWHERE = 1 << 27


def _chunks(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    read_logits: ReadLogits | None = None,
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Split the positions into chunks whose logits stay in cache, or on other devices do not fill the memory.

    Yields:
        The slice of the chunk; its cross entropies and its most probable ids, (m,); its probabilities, (m, V).
    """
    accumulate = torch.promote_types(hidden_MD.dtype, torch.float32)
    size = len(targets_M)
    rows = max(1, _chunk_logits(hidden_MD.device) // len(weight_VD))
    for start in range(0, size, rows):
        part = slice(start, start + rows)
        logits = torch.nn.functional.linear(hidden_MD[part], weight_VD, bias_V)
        if read_logits is not None:
            read_logits(part, logits)
        targets = targets_M[part, None]
        top, best = logits.max(-1, keepdim=True)
        probabilities = logits.softmax(-1, dtype=accumulate)
        # log p[target] = (logit - top) + log p[top], which does not underflow even for a very small p[target].
        top_log = probabilities.gather(-1, best).log_()
        losses = -(logits.gather(-1, targets).to(accumulate) - top.to(accumulate) + top_log)[:, 0]
        yield part, losses, best[:, 0], probabilities


def _chunk_logits(device: torch.device) -> int:
    return _CHUNK_LOGITS if device.type == "cpu" else _CHUNK_LOGITS_ELSEWHERE


def _subtract_targets(probabilities: Tensor, targets: Tensor) -> None:
    """Turn probabilities into the gradient of the cross entropies with respect to the logits, in place."""
    minus_one = torch.full_like(probabilities[:, :1], -1.0)
    probabilities.scatter_add_(-1, targets[:, None], minus_one)


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
        for part, losses, best, probabilities in _chunks(hidden_MD, weight, bias, targets_M, read_logits):
            losses_M[part], hits_M[part] = losses, best == targets_M[part]
            if needs_gradient:
                _subtract_targets(probabilities, targets_M[part])
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
        for part, losses, best, probabilities in _chunks(hidden_MD, weight, bias, targets_M, read_logits):
            total += (losses * weights_M[part]).sum()
            hits_M[part] = best == targets_M[part]
            if grad_hidden is None or grad_weight is None:
                continue
            _subtract_targets(probabilities, targets_M[part])
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


def _inputs(hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The states in the dtype of autocast; and all three without gradient where none is wanted.

    ``ctx.needs_input_grad`` is also true under ``no_grad``: a validation would compute gradients and drop them.
    """
    device = hidden_MD.device.type
    if torch.is_autocast_enabled(device):
        hidden_MD = hidden_MD.to(torch.get_autocast_dtype(device))
    if torch.is_grad_enabled():
        return hidden_MD, weight_VD, bias_V
    return hidden_MD.detach(), weight_VD.detach(), None if bias_V is None else bias_V.detach()


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
    hidden_MD, weight_VD, bias_V = _inputs(hidden_MD, weight_VD, bias_V)
    is_large = device != "cpu" and len(hidden_MD) * len(weight_VD) > 2 * _CHUNK_LOGITS_ELSEWHERE
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
        for part, losses, best, probabilities in _chunks(hidden_MD, weight, bias, targets_M):
            losses_M[part], best_M[part] = losses, best
            if needs_gradient:
                _subtract_targets(probabilities, targets_M[part])
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
    hidden_MD, weight_VD, bias_V = _inputs(hidden_MD, weight_VD, bias_V)
    with torch.autocast(hidden_MD.device.type, enabled=False):
        return _CrossEntropies.apply(hidden_MD, weight_VD, bias_V, targets_M)


def log_uniform_probabilities(ids: Tensor, vocab_size: int) -> Tensor:
    """``log((id + 2) / (id + 1)) / log(V + 1)``: about Zipf's law if ids are sorted by frequency; float32."""
    return torch.log1p(1.0 / (ids.float() + 1.0)) / math.log(vocab_size + 1)


def log_uniform_samples(num_samples: int, vocab_size: int, device: torch.device) -> Tensor:
    """``num_samples`` ids sampled with replacement from ``log_uniform_probabilities``, int64 (S,)."""
    uniform_S = torch.rand(num_samples, device=device, dtype=torch.float64)
    ids_S = torch.exp(uniform_S * math.log(vocab_size + 1)).long() - 1
    return ids_S.clamp_(0, vocab_size - 1)  # rounding at the upper end


def sampled_cross_entropy_sum(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_M: Tensor, weights_M: Tensor, *, samples_S: Tensor
) -> Tensor:
    """Sum of cross entropies (nats) over a softmax of the target and the sampled ids only, each distinct id once.

    Jean et al. 2015, section 3. From each logit we subtract log Q, where Q = 1 - (1 - p)^S is the probability that its
    id is among the samples. Repetitions of an id, and ids equal to the target, are excluded from the prediction. The
    optimum is then that of the full softmax for any S, except for the dependence between the ids of one sample (a word
    of probability 0.6 is learned as 0.60 at S = 64 and at S = 512). As S grows, every Q approaches 1 and this loss
    approaches the full softmax. If repeated ids were counted, with Q = S p, there would be no optimum for words of a
    probability above one half.

    ELMo was trained with ``tf.nn.sampled_softmax_loss``, which does the same but samples until S ids are distinct. Here
    S is the number of samples, so Q is exact and shapes are static.

    Args:
        hidden_MD: output states at the prediction positions.
        weight_VD: output embedding.
        bias_V: output bias.
        targets_M: target ids, int64.
        weights_M: weight of the loss at each position, float.
        samples_S: ids from ``log_uniform_samples``.
    """
    vocabulary, num_samples = len(weight_VD), len(samples_S)
    sampled_MS = torch.nn.functional.linear(hidden_MD, weight_VD[samples_S], bias_V[samples_S])
    dtype = torch.promote_types(sampled_MS.dtype, torch.float32)
    true_M = (hidden_MD.to(dtype) * weight_VD[targets_M].to(dtype)).sum(-1) + bias_V[targets_M]

    def corrected(logits: Tensor, ids: Tensor) -> Tensor:
        return logits.to(dtype) - log_inclusion(ids, vocabulary, num_samples).to(dtype)

    true_M = corrected(true_M, targets_M)
    left_out_MS = (samples_S == targets_M[:, None]) | _already_sampled(samples_S)
    sampled_MS = corrected(sampled_MS, samples_S).masked_fill(left_out_MS, -math.inf)
    normaliser_M = torch.logaddexp(true_M, sampled_MS.logsumexp(-1))
    return ((normaliser_M - true_M) * weights_M).sum()


def log_inclusion(ids: Tensor, vocab_size: int, num_samples: int) -> Tensor:
    """``log(1 - (1 - p)^S)``: the log of the probability that an id is among S samples; float32."""
    probabilities = log_uniform_probabilities(ids, vocab_size)
    return (-torch.expm1(num_samples * torch.log1p(-probabilities))).log()


def _already_sampled(ids_S: Tensor) -> Tensor:
    """Whether the same id occurs earlier in ``ids_S``, bool (S,)."""
    sorted_S, order_S = ids_S.sort(stable=True)
    again_S = torch.zeros_like(ids_S, dtype=torch.bool)
    again_S[1:] = sorted_S[1:] == sorted_S[:-1]
    return torch.empty_like(again_S).index_copy_(0, order_S, again_S)
