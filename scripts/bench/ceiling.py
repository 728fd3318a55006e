"""Measures the fastest matrix products of a device, an upper bound in practice on the speed of training."""

from __future__ import annotations

import time
from typing import Any

import torch

from lmtransfer.training.flops import peak_flops
from lmtransfer.training.hardware import setup

from .setting import Setting

_SECONDS = {"cuda": 2.0, "cpu": 0.2}


def measure(setting: Setting) -> dict[str, Any]:
    """Multiply matrices in the training's number format.

    Returns:
        ``square``: FLOP/s for large square matrices; ``model``: FLOP/s for the first product in the model's
        feed-forward layer; ``peak``: FLOP/s in the data sheet, None if unknown.
    """
    hardware = setup(device=setting.device, threads=setting.threads)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(hardware.precision.name, torch.float32)
    large = 8192 if setting.device == "cuda" else 256
    return {
        "square": _rate(large, large, large, device=hardware.device, dtype=dtype),
        "model": _rate(
            setting.rows * setting.length, setting.dim, setting.hidden_dim, device=hardware.device, dtype=dtype
        ),
        "peak": peak_flops(hardware.device),
        "precision": hardware.precision.name,
    }


def _rate(rows: int, inner: int, columns: int, *, device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s for products of matrices rows x inner and inner x columns."""
    left = torch.randn(rows, inner, device=device, dtype=dtype)
    right = torch.randn(inner, columns, device=device, dtype=dtype)
    once = _seconds(left, right, times=10)  # also warms up
    times = max(10, int(_SECONDS[device.type] / once * 10))
    return 2.0 * rows * inner * columns * times / _seconds(left, right, times=times)


def _seconds(left: torch.Tensor, right: torch.Tensor, *, times: int) -> float:
    out = left @ right
    _wait(left)
    start_time = time.perf_counter()
    for _ in range(times):
        torch.mm(left, right, out=out)
    _wait(left)
    return time.perf_counter() - start_time


def _wait(tensor: torch.Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize()
