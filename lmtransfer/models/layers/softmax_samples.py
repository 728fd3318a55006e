"""Sample from a softmax with given uniform numbers, in chunks, so that all logits are never in memory at once.

Shape legend: M positions, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Number of logits in memory at one time: 2 MiB on a CPU, 64 MiB on other devices.
_CHUNK_LOGITS = {"cpu": 1 << 19}
_CHUNK_LOGITS_ELSEWHERE = 1 << 24


@torch.no_grad()
def sample_softmax(
    hidden_MD: Tensor, weight_VD: Tensor, bias_V: Tensor, uniform_M: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Sample one id per position from ``softmax((hidden @ weight.T + bias) / temperature)``, in float32 or wider.

    Args:
        hidden_MD: output states.
        weight_VD: output embedding.
        bias_V: output bias.
        uniform_M: one number per position, in [0, 1).
        temperature: above 0.

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
    """Sample one id per position from ``softmax(logits / temperature)``, in float32 or wider; logits stay as they are.

    The method is inversion: the sample is the first id at which the cumulative probability exceeds the uniform number
    of the position. A sample therefore depends only on its own position, not on the rest of the batch.
    google-research/electra samples from the same distribution with Gumbel noise, which needs V random numbers per
    position.

    Args:
        logits_MV: logits of any floating dtype. A chunk of them at a time is copied to float32.
        uniform_M: one number per position, in [0, 1).
        temperature: above 0.

    Returns:
        int64, (M,).
    """
    (size, vocabulary), device = logits_MV.shape, logits_MV.device
    dtype = torch.promote_types(logits_MV.dtype, torch.float32)
    samples = torch.empty(size, dtype=torch.int64, device=device)
    for part in _chunks(size, vocabulary, device):
        logits = logits_MV[part].to(dtype, copy=True).div_(temperature)
        sums = logits.sub_(logits.amax(-1, keepdim=True)).exp_().cumsum_(-1)
        found = torch.searchsorted(sums, uniform_M[part, None].to(dtype) * sums[:, -1:], right=True)
        samples[part] = found[:, 0]
    return samples.clamp_(max=vocabulary - 1)  # rounding at the upper end


def _chunks(size: int, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Slices of ``size`` positions whose logits fit in one chunk."""
    rows = max(1, _CHUNK_LOGITS.get(device.type, _CHUNK_LOGITS_ELSEWHERE) // vocabulary)
    return (slice(start, start + rows) for start in range(0, size, rows))
