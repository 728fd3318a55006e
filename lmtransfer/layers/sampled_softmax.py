"""Softmax cross entropy against a sample of the vocabulary (Jean et al. 2015, section 3).

Shape legend: M predictions, S samples, V vocabulary, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_uniform_probabilities(ids: Tensor, vocab_size: int) -> Tensor:
    """``log((id + 2) / (id + 1)) / log(V + 1)``: about Zipf's law where ids are sorted by frequency; float32."""
    return torch.log1p(1.0 / (ids.float() + 1.0)) / math.log(vocab_size + 1)


def log_uniform_samples(num_samples: int, vocab_size: int, device: torch.device) -> Tensor:
    """``num_samples`` ids drawn with replacement by the probabilities above, from torch's generator, int64 (S,)."""
    uniform_S = torch.rand(num_samples, device=device, dtype=torch.float64)
    ids_S = torch.exp(uniform_S * math.log(vocab_size + 1)).long() - 1
    return ids_S.clamp_(0, vocab_size - 1)  # rounding at the upper end


def sampled_cross_entropy_sum(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, targets_M: Tensor, weights_M: Tensor, *, samples_S: Tensor
) -> Tensor:
    """Sum of cross entropies (nats) in which the target competes with the samples only.

    Each logit is lowered by the log of how often its id is expected in the sample, so that the loss tends to the full
    softmax as S grows; a sample that is the target itself is left out of that prediction. Where we differ from
    ``tf.nn.sampled_softmax_loss``, which ELMo was trained with: samples are drawn with replacement, so that the
    expected counts are exact and shapes static.

    Args:
        hidden_MD: output states at the prediction positions.
        weight_VD: output embedding.
        bias_V: output bias.
        targets_M: target ids, int64.
        weights_M: weight of each position's loss, float.
        samples_S: ids from ``log_uniform_samples``.
    """
    vocabulary, num_samples = len(weight_VD), len(samples_S)
    sampled_MS = torch.nn.functional.linear(hidden_MD, weight_VD[samples_S], bias_V[samples_S])
    dtype = torch.promote_types(sampled_MS.dtype, torch.float32)
    true_M = (hidden_MD.to(dtype) * weight_VD[targets_M].to(dtype)).sum(-1) + bias_V[targets_M]

    def corrected(logits: Tensor, ids: Tensor) -> Tensor:
        return logits.to(dtype) - (num_samples * log_uniform_probabilities(ids, vocabulary)).log()

    true_M = corrected(true_M, targets_M)
    sampled_MS = corrected(sampled_MS, samples_S)
    sampled_MS = sampled_MS.masked_fill(samples_S == targets_M[:, None], -math.inf)
    normaliser_M = torch.logaddexp(true_M, sampled_MS.logsumexp(-1))
    return ((normaliser_M - true_M) * weights_M).sum()
