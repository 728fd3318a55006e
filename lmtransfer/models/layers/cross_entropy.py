"""Softmax cross entropies at prediction positions, over the whole vocabulary or a sample of it, computed in chunks.

Shape legend: M prediction positions, m positions of a chunk, S samples, V vocabulary, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Number of logits in memory at a time during sampling: 2 MiB on a CPU, 64 MiB on other devices.
_CHUNK_SAMPLED = {"cpu": 1 << 19}
_CHUNK_SAMPLED_ELSEWHERE = 1 << 24

#: A function that reads the logits of a chunk, (m, V), given the slice of its positions, without changing them.
ReadLogits = Callable[[slice, Tensor], None]
#: Number of logits in a chunk on a CPU: 1 MiB in bfloat16, which fits in the second-level cache.
_CHUNK_LOGITS = 1 << 19
#: Number of logits in a chunk on other devices: 256 MiB in bfloat16, and 512 MiB for the probabilities.
CHUNK_LOGITS_ELSEWHERE = 1 << 27


@torch.no_grad()
def sample_softmax(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, uniform_M: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Sample one id per position from ``softmax((hidden @ weight.T + bias) / temperature)``, in float32 or wider.

    Returns:
        int64, (M,); see ``sample_logits``.
    """
    device, dtype = hidden_MD.device, torch.promote_types(hidden_MD.dtype, torch.float32)
    with torch.autocast(device.type, enabled=False):
        hidden, weight, bias = (t.to(dtype) for t in (hidden_MD, weight_VD, bias_V))
        samples = torch.empty(len(hidden), dtype=torch.int64, device=device)
        for part in _chunks(len(hidden), len(weight), device):
            logits = torch.nn.functional.linear(hidden[part], weight, bias)
            samples[part] = sample_logits(logits, uniform_M[part], temperature=temperature)
        return samples


@torch.no_grad()
def sample_logits(logits_MV: Tensor, uniform_M: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Sample one id per position from ``softmax(logits / temperature)``, in float32 or wider.

    The method is inversion: the sample is the first id at which the cumulative probability exceeds the position's
    uniform number. A sample therefore depends only on its own position, not on the rest of the batch.
    google-research/electra samples from the same distribution with Gumbel noise, which needs V random numbers per
    position.

    Args:
        logits_MV: logits of any floating dtype; converted to float32 one chunk at a time.

    Returns:
        int64, (M,).
    """
    (size, vocabulary), device = logits_MV.shape, logits_MV.device
    dtype = torch.promote_types(logits_MV.dtype, torch.float32)
    samples = torch.empty(size, dtype=torch.int64, device=device)
    for part in _chunks(size, vocabulary, device):
        logits = logits_MV[part].to(dtype, copy=True).div_(temperature)
        sums = logits.sub_(logits.amax(-1, keepdim=True)).exp_().cumsum_(-1)
        places = torch.searchsorted(sums, uniform_M[part, None].to(dtype) * sums[:, -1:], right=True)
        samples[part] = places[:, 0]
    return samples.clamp_(max=vocabulary - 1)  # rounding can lead beyond the last id


def _chunks(size: int, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of ``size`` positions whose logits fit in one chunk."""
    rows = max(1, _CHUNK_SAMPLED.get(device.type, _CHUNK_SAMPLED_ELSEWHERE) // vocabulary)
    return (slice(start, start + rows) for start in range(0, size, rows))


class _Chunk(NamedTuple):
    """The results for a chunk of positions.

    Attributes:
        best: the most probable id at each position, int64, (m,).
        gradient: the gradient of the weighted sum of the losses with respect to the logits, (m, V); None if not needed.
        bias_gradient: the sum of ``gradient`` over the positions, (V,); None if not needed, or without bias or weights.
    """

    losses: Tensor
    best: Tensor
    gradient: Tensor | None
    bias_gradient: Tensor | None


def _chunks_of_logits(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    weights_M: Tensor | None = None,
    read_logits: ReadLogits | None = None,
    *,
    needs_gradient: bool,
) -> Iterator[tuple[slice, _Chunk]]:
    """Yield the results chunk by chunk, so that the logits stay in cache, or do not fill the memory of a GPU."""
    compute = _compute_chunk if hidden_MD.device.type == "cpu" else _compute_on_device
    needs_bias = bias_V is not None and weights_M is not None
    rows = max(1, chunk_logits(hidden_MD.device) // len(weight_VD))
    for start in range(0, len(targets_M), rows):
        part = slice(start, start + rows)
        logits = torch.nn.functional.linear(hidden_MD[part], weight_VD, bias_V)
        if read_logits is not None:
            read_logits(part, logits)
        weights = None if weights_M is None else weights_M[part]
        yield part, compute(logits, targets_M[part], weights, needs_gradient, needs_bias)


def _compute_chunk(
    logits: Tensor, targets: Tensor, weights: Tensor | None, needs_gradient: bool, needs_bias: bool
) -> _Chunk:
    """Compute the results of a chunk; the gradient is float32 or wider, and overwrites the probabilities."""
    accumulate = torch.promote_types(logits.dtype, torch.float32)
    top, best = logits.max(-1, keepdim=True)
    probabilities = logits.softmax(-1, dtype=accumulate)
    # log p[target] = (logit - top) + log p[top], which does not underflow even for a very small p[target].
    top_log = probabilities.gather(-1, best).log_()
    losses = -(logits.gather(-1, targets[:, None]).to(accumulate) - top.to(accumulate) + top_log)[:, 0]
    if not needs_gradient:
        return _Chunk(losses, best[:, 0], None, None)
    gradient = probabilities.scatter_add_(-1, targets[:, None], torch.full_like(probabilities[:, :1], -1.0))
    if weights is not None:
        torch.mul(gradient, weights[:, None], out=gradient)
    # Sum here, in the accumulation dtype and in cache: a later sum over all positions would first copy the gradient.
    return _Chunk(losses, best[:, 0], gradient, gradient.sum(0) if needs_bias else None)


def _compute_fused(
    logits: Tensor, targets: Tensor, weights: Tensor | None, needs_gradient: bool, needs_bias: bool
) -> _Chunk:
    """Compute the results of a chunk in a form that compiles to fused kernels; the gradient has the logits' dtype."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    top, best = exact.max(-1, keepdim=True)
    shifted = exact - top
    powers = shifted.exp()
    total = powers.sum(-1, keepdim=True)
    losses = (total.log() - shifted.gather(-1, targets[:, None]))[:, 0]
    if not needs_gradient:
        return _Chunk(losses, best[:, 0], None, None)
    at_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    gradient = powers / total - at_target.to(exact.dtype)
    if weights is not None:
        gradient = gradient * weights[:, None]
    return _Chunk(losses, best[:, 0], gradient.to(logits.dtype), gradient.sum(0) if needs_bias else None)


#: The function that computes a chunk on devices other than the CPU; see ``compile_losses``.
_compute_on_device = _compute_chunk


def compile_losses() -> None:
    """Compile the cross entropies for devices other than the CPU, from now on and for the whole process."""
    global _compute_on_device
    _compute_on_device = torch.compile(_compute_fused)


def chunk_logits(device: torch.device) -> int:
    """Return the maximum number of logits in a chunk."""
    return _CHUNK_LOGITS if device.type == "cpu" else CHUNK_LOGITS_ELSEWHERE


def loss_inputs(hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Convert the states to autocast's dtype, and detach all three tensors if no gradient is needed.

    ``ctx.needs_input_grad`` is true even under ``no_grad``, so that validation would compute gradients for nothing.
    """
    device = hidden_MD.device.type
    if torch.is_autocast_enabled(device):
        hidden_MD = hidden_MD.to(torch.get_autocast_dtype(device))
    if torch.is_grad_enabled():
        return hidden_MD, weight_VD, bias_V
    return hidden_MD.detach(), weight_VD.detach(), None if bias_V is None else bias_V.detach()


def _prepare(
    ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None
) -> tuple[Tensor, Tensor | None, torch.dtype, bool]:
    """Return the weight and bias in the dtype of the states, the dtype of sums, and whether gradients are needed."""
    ctx.dtypes = (weight_VD.dtype, None if bias_V is None else bias_V.dtype)
    dtype = hidden_MD.dtype
    bias = None if bias_V is None else bias_V.to(dtype)
    return weight_VD.to(dtype), bias, torch.promote_types(dtype, torch.float32), any(ctx.needs_input_grad[:3])


class _CrossEntropySum(torch.autograd.Function):
    """The forward pass computes the gradient of the logits while they are in cache; backward multiplies matrices."""

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
        weight, bias, accumulate, needs_gradient = _prepare(ctx, hidden_MD, weight_VD, bias_V)
        size, vocabulary, dtype = len(targets_M), len(weight), hidden_MD.dtype
        losses_M = torch.empty(size, dtype=accumulate, device=hidden_MD.device)
        hits_M = torch.empty(size, dtype=torch.bool, device=hidden_MD.device)
        gradient_MV = torch.empty(size if needs_gradient else 0, vocabulary, dtype=dtype, device=hidden_MD.device)
        bias_gradient_V = torch.zeros(0 if bias is None else vocabulary, dtype=accumulate, device=hidden_MD.device)
        inputs = (hidden_MD, weight, bias, targets_M, weights_M, read_logits)
        for part, chunk in _chunks_of_logits(*inputs, needs_gradient=needs_gradient):
            losses_M[part], hits_M[part] = chunk.losses, chunk.best == targets_M[part]
            if chunk.gradient is not None:
                gradient_MV[part] = chunk.gradient
            if chunk.bias_gradient is not None:
                bias_gradient_V += chunk.bias_gradient
        ctx.save_for_backward(hidden_MD, weight, gradient_MV, bias_gradient_V)
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
    """``_CrossEntropySum`` with less memory: the forward pass also computes the matrix products, chunk by chunk."""

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
        weight, bias, accumulate, needs_gradient = _prepare(ctx, hidden_MD, weight_VD, bias_V)
        total = torch.zeros((), dtype=accumulate, device=hidden_MD.device)
        hits_M = torch.empty(len(targets_M), dtype=torch.bool, device=hidden_MD.device)
        grad_hidden = torch.empty_like(hidden_MD) if needs_gradient else None
        grad_weight = torch.zeros_like(weight, dtype=accumulate) if needs_gradient else None
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=accumulate)
        inputs = (hidden_MD, weight, bias, targets_M, weights_M, read_logits)
        for part, chunk in _chunks_of_logits(*inputs, needs_gradient=needs_gradient):
            total += (chunk.losses * weights_M[part]).sum()
            hits_M[part] = chunk.best == targets_M[part]
            if grad_hidden is None or grad_weight is None or chunk.gradient is None:
                continue
            if grad_bias is not None and chunk.bias_gradient is not None:
                grad_bias += chunk.bias_gradient
            gradient = chunk.gradient.to(weight.dtype)
            grad_hidden[part] = gradient @ weight
            grad_weight += gradient.T @ hidden_MD[part]
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
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
    """Compute the sum of softmax cross entropies (nats) of ``hidden @ weight.T + bias``, in chunks that stay in cache.

    Under autocast, the logits have autocast's dtype; softmax and sum are float32 (float64 for float64 inputs).

    Returns:
        The weighted sum, a scalar with gradient; and whether each target was the most probable id, bool, (M,).
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
    """Compute ``cross_entropy_sum``, and sample an id from the softmax at each position.

    Loss and samples use the same logits, except on a CPU under autocast, where the logits for the samples are computed
    again in float32.

    Returns:
        The two results of ``cross_entropy_sum``; and the samples, int64, (M,).
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
    """The cross entropy at each position; the weights of the positions are known only in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight, bias, accumulate, needs_gradient = _prepare(ctx, hidden_MD, weight_VD, bias_V)
        size, vocabulary, dtype = len(targets_M), len(weight), hidden_MD.dtype
        losses_M = torch.empty(size, dtype=accumulate, device=hidden_MD.device)
        best_M = torch.empty_like(targets_M)
        gradient_MV = torch.empty(size if needs_gradient else 0, vocabulary, dtype=dtype, device=hidden_MD.device)
        for part, chunk in _chunks_of_logits(hidden_MD, weight, bias, targets_M, needs_gradient=needs_gradient):
            losses_M[part], best_M[part] = chunk.losses, chunk.best
            if chunk.gradient is not None:
                gradient_MV[part] = chunk.gradient
        ctx.save_for_backward(hidden_MD, weight, gradient_MV)
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
    """Compute the softmax cross entropy (nats) at each position; for the sum alone, use ``cross_entropy_sum``.

    Returns:
        The cross entropies with gradient, (M,), in the dtype of ``cross_entropy_sum``; and the most probable ids,
        int64, (M,).
    """
    hidden_MD, weight_VD, bias_V = loss_inputs(hidden_MD, weight_VD, bias_V)
    with torch.autocast(hidden_MD.device.type, enabled=False):
        return _CrossEntropies.apply(hidden_MD, weight_VD, bias_V, targets_M)


def log_uniform_probabilities(ids: Tensor, vocab_size: int) -> Tensor:
    """Return ``log((id + 2) / (id + 1)) / log(V + 1)``, float32: roughly Zipf's law if ids are sorted by frequency."""
    return torch.log1p(1.0 / (ids.float() + 1.0)) / math.log(vocab_size + 1)


def log_uniform_samples(num_samples: int, vocab_size: int, device: torch.device) -> Tensor:
    """Sample ids with replacement from ``log_uniform_probabilities``, int64, (S,)."""
    uniform_S = torch.rand(num_samples, device=device, dtype=torch.float64)
    ids_S = torch.exp(uniform_S * math.log(vocab_size + 1)).long() - 1
    return ids_S.clamp_(0, vocab_size - 1)  # rounding can lead beyond the last id


class _SampledCrossEntropies(torch.autograd.Function):
    """The forward pass computes the gradient of the logits while they are in cache; backward multiplies matrices.

    The logits of the targets, ``true_M``, are separate from those of the samples. ``excluded_M`` is the index of the
    sample that equals the target, or S if there is none.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, samples_SD: Tensor, bias_S: Tensor, true_M: Tensor, excluded_M: Tensor
    ) -> Tensor:
        dtype = hidden_MD.dtype
        samples_SD, bias_S = samples_SD.to(dtype), bias_S.to(dtype)
        lowest = torch.finfo(dtype).min  # not -inf: if all samples are excluded, their softmax must not be nan
        accumulate = torch.promote_types(dtype, torch.float32)
        needs_gradient = any(ctx.needs_input_grad)
        size, num_samples = len(hidden_MD), len(samples_SD)
        losses_M = torch.empty(size, dtype=accumulate, device=hidden_MD.device)
        gradient_MS = torch.empty(size if needs_gradient else 0, num_samples, dtype=dtype, device=hidden_MD.device)
        rows = max(1, chunk_logits(hidden_MD.device) // num_samples)
        for start in range(0, size, rows):
            part = slice(start, start + rows)
            logits = torch.nn.functional.linear(hidden_MD[part], samples_SD, bias_S)
            place = excluded_M[part, None].clamp(max=num_samples - 1)
            gold_logits = logits.gather(1, place)
            logits.scatter_(1, place, torch.where(excluded_M[part, None] < num_samples, lowest, gold_logits))
            top, best = logits.max(-1, keepdim=True)
            probabilities = logits.softmax(-1, dtype=accumulate)
            log_sum = top.to(accumulate) - probabilities.gather(-1, best).log_()
            true = true_M[part, None].to(accumulate)
            normalizer = torch.logaddexp(log_sum, true)
            losses_M[part] = (normalizer - true)[:, 0]
            if needs_gradient:
                torch.mul(probabilities, (log_sum - normalizer).exp_(), out=probabilities)
                gradient_MS[part] = probabilities
        ctx.save_for_backward(hidden_MD, samples_SD, gradient_MS, losses_M)
        ctx.dtypes = (true_M.dtype,)
        return losses_M

    @staticmethod
    def backward(ctx: Any, grad_M: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MD, samples_SD, gradient_MS, losses_M = ctx.saved_tensors
        factor_M = grad_M.to(gradient_MS.dtype)
        scaled_MD = hidden_MD * factor_M[:, None]
        grad_hidden = (gradient_MS @ samples_SD).mul_(factor_M[:, None])
        grad_samples = (gradient_MS.T @ scaled_MD).to(grad_M.dtype)
        grad_bias = (gradient_MS.T @ factor_M).to(grad_M.dtype)
        grad_true = (torch.expm1(-losses_M) * grad_M).to(ctx.dtypes[0])  # p(target) - 1
        return grad_hidden, grad_samples, grad_bias, grad_true, None


def sampled_cross_entropies(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    *,
    samples_S: Tensor,
    corrects_target: bool = False,
) -> Tensor:
    """Estimate cross entropies (nats), (M,), with a normalizer computed from sampled ids.

    This is importance sampling (Bengio & Senecal 2003), with the target always in the sample. The normalizer of the
    full softmax, the sum of ``exp(logit)`` over the vocabulary, is replaced by the sum of ``exp(logit)`` of the target
    and ``exp(logit) / Q`` of each distinct sampled id other than the target. Q = 1 - (1 - p)^S is the probability that
    an id is among the samples, so the expected value is the full normalizer. On average, the loss is lower than that of
    the full softmax by about half of the relative variance of the normalizer, which falls with S.

    With ``corrects_target``, the target's term is also divided by Q, as if the target had been sampled (Jean et al.
    2015; ELMo was trained in this way, with ``tf.nn.sampled_softmax_loss``, which samples until S ids are distinct).
    The loss is then lower wherever the target is rarely sampled, and cannot be compared with that of the full softmax.
    A masked encoder learned equally well from both (scripts/RESULTS.md, "A sampled softmax").

    Under autocast, the logits of the samples have autocast's dtype; everything else is float32 (float64 for float64
    inputs).
    """
    vocabulary, num_samples = len(weight_VD), len(samples_S)
    hidden_MD, weight_VD, bias_V = loss_inputs(hidden_MD, weight_VD, bias_V)
    with torch.autocast(hidden_MD.device.type, enabled=False):
        dtype = torch.promote_types(hidden_MD.dtype, torch.float32)
        sorted_S, order_S = samples_S.sort(stable=True)
        repeats_S = torch.zeros_like(samples_S, dtype=torch.bool)
        repeats_S[1:] = sorted_S[1:] == sorted_S[:-1]
        repeats_S = torch.empty_like(repeats_S).index_copy_(0, order_S, repeats_S)
        place_M = torch.searchsorted(sorted_S, targets_M).clamp_(max=num_samples - 1)
        place_M = torch.where(sorted_S[place_M] == targets_M, order_S[place_M], num_samples)

        ids = torch.cat([samples_S, targets_M])  # a single lookup, because its gradient is as large as the vocabulary
        samples_SD, true_MD = weight_VD.index_select(0, ids).split([num_samples, len(targets_M)])
        true_M = (hidden_MD.to(dtype) * true_MD.to(dtype)).sum(-1)
        bias_S = -log_inclusion(samples_S, vocabulary, num_samples).to(dtype)
        if bias_V is not None:
            of_samples_S, of_targets_M = bias_V.index_select(0, ids).to(dtype).split([num_samples, len(targets_M)])
            bias_S, true_M = bias_S + of_samples_S, true_M + of_targets_M
        if corrects_target:
            true_M = true_M - log_inclusion(targets_M, vocabulary, num_samples).to(dtype)
        bias_S = bias_S.masked_fill(repeats_S, torch.finfo(hidden_MD.dtype).min)
        return _SampledCrossEntropies.apply(hidden_MD, samples_SD, bias_S, true_M, place_M)


def log_inclusion(ids: Tensor, vocab_size: int, num_samples: int) -> Tensor:
    """Return the log probability that an id is among S samples, ``log(1 - (1 - p)^S)``, float32."""
    probabilities = log_uniform_probabilities(ids, vocab_size)
    return (-torch.expm1(num_samples * torch.log1p(-probabilities))).log()
