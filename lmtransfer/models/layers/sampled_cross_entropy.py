"""The softmax cross entropy with a normaliser estimated from a sample of the vocabulary.

Shape legend: M prediction positions, m of a chunk, S samples, V vocabulary, D width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lmtransfer.models.layers.logit_chunks import chunk_logits, loss_inputs


def log_uniform_probabilities(ids: Tensor, vocab_size: int) -> Tensor:
    """``log((id + 2) / (id + 1)) / log(V + 1)``: about Zipf's law if ids are sorted by frequency; float32."""
    return torch.log1p(1.0 / (ids.float() + 1.0)) / math.log(vocab_size + 1)


def log_uniform_samples(num_samples: int, vocab_size: int, device: torch.device) -> Tensor:
    """``num_samples`` ids sampled with replacement from ``log_uniform_probabilities``, int64 (S,)."""
    uniform_S = torch.rand(num_samples, device=device, dtype=torch.float64)
    ids_S = torch.exp(uniform_S * math.log(vocab_size + 1)).long() - 1
    return ids_S.clamp_(0, vocab_size - 1)  # rounding at the upper end


class _SampledCrossEntropies(torch.autograd.Function):
    """Forward computes the gradient of the logits while they are in cache; backward only multiplies matrices.

    The logits of the targets, ``true_M``, are apart from those of the samples. ``excluded_M`` is the sample that equals
    the target, or S if none does.
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
            kept = logits.gather(1, place)
            logits.scatter_(1, place, torch.where(excluded_M[part, None] < num_samples, lowest, kept))
            top, best = logits.max(-1, keepdim=True)
            probabilities = logits.softmax(-1, dtype=accumulate)
            log_sum = top.to(accumulate) - probabilities.gather(-1, best).log_()
            true = true_M[part, None].to(accumulate)
            normaliser = torch.logaddexp(log_sum, true)
            losses_M[part] = (normaliser - true)[:, 0]
            if needs_gradient:
                torch.mul(probabilities, (log_sum - normaliser).exp_(), out=probabilities)
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
    """Cross entropies (nats) whose normaliser is estimated from the sampled ids; (M,).

    Importance sampling (Bengio & Senecal 2003), with the target always in the sample. The normaliser of the full
    softmax, the sum of ``exp(logit)`` over the vocabulary, is replaced with ``exp(logit)`` of the target and, for each
    distinct sampled id other than the target, ``exp(logit) / Q``. Q = 1 - (1 - p)^S is the probability that the id is
    among the samples, so the mean is the full normaliser. The loss estimates that of the full softmax: on average it is
    lower by about half of the relative variance of the normaliser, which falls with S.

    With ``corrects_target`` the target is divided by Q, too, as if it had been sampled (Jean et al. 2015; ELMo was
    trained so, with ``tf.nn.sampled_softmax_loss``, which samples until S ids are distinct). Then the loss is lower
    wherever the target is rarely sampled, and cannot be compared with that of the full softmax. A masked encoder
    learned the same from both (scripts/RESULTS.md, "A sampled softmax").

    Under autocast the logits of the samples have its dtype; everything else is float32 (float64 for float64 inputs).

    Args:
        hidden_MD: output states at the prediction positions.
        weight_VD: output embedding; may be the tied input embedding.
        bias_V: output bias, or None.
        targets_M: target ids, int64.
        samples_S: ids from ``log_uniform_samples``.
        corrects_target: see above.
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

        ids = torch.cat([samples_S, targets_M])  # read at once: each reading has a gradient as large as the vocabulary
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
    """``log(1 - (1 - p)^S)``: the log of the probability that an id is among S samples; float32."""
    probabilities = log_uniform_probabilities(ids, vocab_size)
    return (-torch.expm1(num_samples * torch.log1p(-probabilities))).log()
