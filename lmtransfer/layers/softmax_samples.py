"""Sample from a softmax with given uniform numbers, in chunks, so that all logits are never in memory at once.

Shape legend: M positions, V vocabulary, D width.
"""

from __future__ import annotations

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

    On other devices than a CPU the product has the dtype of autocast, as the product of the loss has.

    The method is inversion: the sample is the first id at which the cumulative probability exceeds the uniform number
    of the position. A sample therefore depends only on its own position, not on the rest of the batch.
    google-research/electra samples from the same distribution with Gumbel noise, which needs V random numbers per
    position.

    Args:
        hidden_MD: output states.
        weight_VD: output embedding.
        bias_V: output bias.
        uniform_M: one number per position, in [0, 1).
        temperature: above 0.

    Returns:
        int64, (M,).
    """
    device, dtype = hidden_MD.device, torch.promote_types(hidden_MD.dtype, torch.float32)
    product = dtype
    if device.type != "cpu" and torch.is_autocast_enabled(device.type):
        product = torch.get_autocast_dtype(device.type)
    with torch.autocast(device.type, enabled=False):
        hidden, weight, bias = (t.to(product) for t in (hidden_MD, weight_VD, bias_V))
        uniform = uniform_M.to(dtype)
        rows = max(1, _CHUNK_LOGITS.get(device.type, _CHUNK_LOGITS_ELSEWHERE) // len(weight))
        samples = torch.empty(len(hidden), dtype=torch.int64, device=device)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = torch.nn.functional.linear(hidden[part], weight, bias).to(dtype).div_(temperature)
            sums = logits.sub_(logits.amax(-1, keepdim=True)).exp_().cumsum_(-1)
            found = torch.searchsorted(sums, uniform[part, None] * sums[:, -1:], right=True)
            samples[part] = found[:, 0]
        return samples.clamp_(max=len(weight) - 1)  # rounding at the upper end
