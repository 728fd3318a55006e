"""Precision: bfloat16 autocast if the hardware supports it, float16 with a loss scale on older GPUs, or float32.

A CPU that only emulates bfloat16 is at least four times slower than with float32. The precision is therefore chosen
once, from the capabilities of the hardware, and then used for autocast, Newton-Schulz, frozen features and evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

PrecisionName = Literal["bf16", "fp16", "fp32"]


class Precision:
    """The precision of matrix products; weights, gradients and optimizer state keep their own dtypes."""

    def __init__(
        self, *, name: PrecisionName = "fp32", device: torch.device | str = "cpu", init_scale: float = 2.0**16
    ) -> None:
        self.name = name
        self.device = torch.device(device)
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
        self.scaler = LossScale(init_scale=init_scale) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager:
        """Return the autocast context for a forward pass."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    @property
    def optimizer_dtype(self) -> torch.dtype:
        """The dtype of matrix products in an optimizer: bfloat16, or float32 on a GPU that would emulate bfloat16.

        With fp16, the dtype is float32, because the range of float16 is too small.
        """
        emulated = self.device.type == "cuda" and fastest_precision(self.device).name != "bf16"
        return torch.float32 if self.dtype is torch.float16 or emulated else self.dtype

    @property
    def scale(self) -> float:
        """The factor by which the loss is multiplied before the backward pass; 1 except in float16."""
        return 1.0 if self.scaler is None else self.scaler.scale


class LossScale:
    """Keeps float16 gradients in range (Micikevicius et al. 2018, section 3.2).

    The loss is multiplied by ``scale`` and the gradients are divided by it. If gradients overflow, the step is skipped
    and the scale is halved. After ``growth_interval`` good steps in a row the scale is doubled.
    """

    def __init__(self, *, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.scale = init_scale
        self.growth_interval = growth_interval
        self.good_steps = 0

    def update(self, *, overflowed: bool) -> None:
        """Adjust the scale after one step."""
        if overflowed:
            self.scale /= 2
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= 2
            self.good_steps = 0

    def state_dict(self) -> dict[str, float]:
        """Return the state as plain numbers."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state from ``state_dict``."""
        self.scale = float(state["scale"])
        self.good_steps = int(state["good_steps"])


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """A precision, and the reason for it."""

    name: PrecisionName
    reason: str


#: CPU flags with which Linux reports that the hardware multiplies bfloat16, on x86 and ARM.
CPU_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "ARM's bfloat16 instructions"}

#: Precisions by minimum CUDA compute capability. GPUs below 7.0 have no tensor cores; most multiply float16 slowly.
CUDA_PRECISIONS: tuple[tuple[tuple[int, int], PrecisionName, str], ...] = (
    ((8, 0), "bf16", "tensor cores for bfloat16"),
    ((7, 0), "fp16", "tensor cores for float16 only"),
    ((0, 0), "fp32", "no tensor cores"),
)

#: Environment variables that limit the CPU instruction set of matrix products. With the limits in ``_WITHOUT_BF16``,
#: bfloat16 is emulated (oneDNN documentation, "CPU dispatcher control").
_CEILINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}


def fastest_precision(device: torch.device) -> PrecisionChoice:
    """Return a device's fastest precision and the reason."""
    if device.type == "cuda":
        return cuda_precision(torch.cuda.get_device_capability(device))
    if device.type == "cpu":
        return cpu_precision(cpu_flags(), os.environ)
    return PrecisionChoice("fp32", f"the only precision used on {device.type}")


def cuda_precision(capability: tuple[int, int]) -> PrecisionChoice:
    """Return the precision for a GPU with this compute capability."""
    name, reason = next((name, reason) for least, name, reason in CUDA_PRECISIONS if capability >= least)
    return PrecisionChoice(name, reason)


def cpu_precision(flags: frozenset[str], environment: Mapping[str, str]) -> PrecisionChoice:
    """Return the precision for a CPU, given its features as Linux names them; float32 if they are unknown."""
    ceiling = next((environment[name].upper() for name in _CEILINGS if environment.get(name)), None)
    if ceiling in _WITHOUT_BF16:
        return PrecisionChoice("fp32", f"an environment variable limits the CPU to {ceiling}, without bfloat16")
    hardware_name = next((name for flag, name in CPU_BF16.items() if flag in flags), None)
    if hardware_name is None:
        return PrecisionChoice("fp32", "this CPU would only emulate bfloat16")
    return PrecisionChoice("bf16", hardware_name)


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the CPU's features ("flags" on x86, "Features" on ARM); empty if the file does not exist."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())
