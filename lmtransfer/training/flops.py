"""The number of operations in training and the peak rate of a GPU, for model FLOPs utilization (MFU)."""

from __future__ import annotations

import re

import torch

#: Peak rates of dense 16-bit matrix products, FLOP/s without sparsity, from the vendor's data sheets; the first match
#: counts.
_PEAKS = (
    ("Laptop", None),  # laptop GPUs have other chips with the same model numbers
    ("H200 NVL", 835e12),
    ("H200", 989e12),
    ("GH200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("RTX 4090", 165e12),
    ("V100", 125e12),
    ("T4", 65e12),
)


def peak_flops(device: torch.device) -> float | None:
    """Return a GPU's dense 16-bit peak in FLOP/s; None for unknown GPUs and for other devices.

    Names are matched by whole words, so that L4 does not match L40, nor T4 T400.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for words, peak in _PEAKS if re.search(rf"\b{words}\b", name)), None)


def peak_of(model: str) -> float:
    """Return the dense 16-bit peak of a GPU model, such as ``A100``, in FLOP/s."""
    peak = dict(_PEAKS)[model]
    assert peak is not None
    return peak


def training_flops_per_token(*, num_weights: float, num_layers: int, dim: int, mean_length: float) -> float:
    """Estimate the FLOP per token in the forward and backward passes of a bidirectional transformer.

    Each weight takes two operations in the forward pass and four in the backward pass. The two products of attention
    are counted in the same way (Chowdhery et al. 2022, PaLM, appendix B). The caller accounts for repeated or skipped
    computation (such as an output layer at masked positions only) in ``num_weights``.

    Args:
        dim: total width of the queries and keys over all heads.
    """
    return 6.0 * num_weights + 12.0 * num_layers * dim * mean_length
