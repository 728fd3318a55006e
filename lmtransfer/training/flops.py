"""The arithmetic of training, and how much of it a GPU could do: for the share of the peak that is reached (MFU)."""

from __future__ import annotations

import re

import torch

#: Dense matrix products in 16 bits, FLOP/s without sparsity, from the vendor's data sheets; the first match counts.
_PEAKS = (
    ("Laptop", None),  # other chips under the same numbers
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
    """Dense 16-bit peak of a GPU, FLOP/s; None where it is not known, and on other devices.

    A device is known by whole words of its name: an L4 is no L40, and a T4 no T400.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for words, peak in _PEAKS if re.search(rf"\b{words}\b", name)), None)


def training_flops_per_token(*, num_weights: float, num_layers: int, dim: int, mean_length: float) -> float:
    """Forward and backward arithmetic of one token of a bidirectional transformer, in FLOP.

    Two operations a weight forward and four backward, and the same for the two products of attention (Chowdhery et al.
    2022, PaLM, appendix B). What is computed again or left out (an output layer at masked positions only) is up to
    the caller's ``num_weights``.

    Args:
        num_weights: entries of the matrices that every token passes through, each counted as often as it is used.
        num_layers: of self-attention.
        dim: width of the queries and keys over all heads.
        mean_length: of the sequences, in tokens.
    """
    return 6.0 * num_weights + 12.0 * num_layers * dim * mean_length
