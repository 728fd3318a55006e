"""Samples from a softmax by the Gumbel-max trick, in chunks, so that logits are never kept.

Shape legend: M positions, V vocabulary, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Logits held at one time: 2 MiB on a processor, 64 MiB elsewhere.
_CHUNK_LOGITS = {"cpu": 1 << 19}
_CHUNK_LOGITS_ELSEWHERE = 1 << 24


@torch.no_grad()
def sample_softmax(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One id a position, drawn from ``softmax((hidden @ weight.T + bias) / temperature)``, in float32 throughout.

    It is ``argmax(logits / temperature + g)`` with independent Gumbel noise ``g = -log(-log(u))`` (Maddison et al.
    2014), as google-research/electra draws.

    Args:
        hidden_MD: output states.
        weight_VD: output embedding.
        bias_V: output bias.
        temperature: above 0.
        generator: of the noise; None: torch's own of the device.

    Returns:
        int64, (M,).
    """
    device = hidden_MD.device
    with torch.autocast(device.type, enabled=False):
        hidden, weight, bias = hidden_MD.float(), weight_VD.float(), bias_V.float()
        rows = max(1, _CHUNK_LOGITS.get(device.type, _CHUNK_LOGITS_ELSEWHERE) // len(weight))
        samples = torch.empty(len(hidden), dtype=torch.int64, device=device)
        for start in range(0, len(hidden), rows):
            logits = torch.nn.functional.linear(hidden[start : start + rows], weight, bias)
            noise = torch.rand(logits.shape, generator=generator, device=device).log_().neg_().log_()
            samples[start : start + rows] = logits.div_(temperature).sub_(noise).argmax(-1)
    return samples
