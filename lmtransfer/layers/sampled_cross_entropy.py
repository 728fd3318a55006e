"""The softmax cross entropy over a sample of the vocabulary.

Shape legend: M prediction positions, S samples, V vocabulary, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
