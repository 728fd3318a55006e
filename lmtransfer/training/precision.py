"""Number formats: bfloat16 autocast where the hardware has it, float16 with a loss scale on older GPUs, float32.

A format that a CPU only emulates is slower than float32 by a factor of four and more, so the choice is made from
what the hardware has, once, and used for autocast, Newton-Schulz, frozen features and evaluation alike.
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
    """The format of the matrix products; weights, their gradients and the optimiser's state stay as they are.

    Args:
        name: ``bf16``, ``fp16`` or ``fp32`` (no autocast: the weights' own format).
        device: where the learner lives.
        init_scale: first loss scale; only fp16 uses one.
    """

    def __init__(
        self, *, name: PrecisionName = "fp32", device: torch.device | str = "cpu", init_scale: float = 2.0**16
    ) -> None:
        self.name = name
        self.device_type = torch.device(device).type
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
        self.scaler = LossScale(init_scale=init_scale) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager:
        """The context of a forward pass."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    @property
    def optimizer_dtype(self) -> torch.dtype:
        """The format of an optimiser's own products: float32 beside float16, whose range is too small for them."""
        return torch.float32 if self.dtype is torch.float16 else self.dtype

    @property
    def scale(self) -> float:
        """What the loss is multiplied by before the backward pass; 1 except in float16."""
        return 1.0 if self.scaler is None else self.scaler.scale


class LossScale:
    """Keeps float16 gradients in range (Micikevicius et al. 2018, section 3.2).

    The loss is multiplied by ``scale`` and the gradients are divided by it. Gradients that overflow skip the step and
    halve the scale; ``growth_interval`` good steps in a row double it.

    Args:
        init_scale: the first scale.
        growth_interval: good steps before the scale is doubled.
    """

    def __init__(self, *, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.scale = init_scale
        self.growth_interval = growth_interval
        self.good_steps = 0

    def update(self, *, overflowed: bool) -> None:
        """Take note of one step."""
        if overflowed:
            self.scale /= 2
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= 2
            self.good_steps = 0

    def state_dict(self) -> dict[str, float]:
        """Plain numbers."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """The reverse of ``state_dict``."""
        self.scale = float(state["scale"])
        self.good_steps = int(state["good_steps"])


@dataclass(frozen=True, slots=True)
class Format:
    """A number format, and why it was chosen."""

    name: PrecisionName
    reason: str


#: CPU flags by which Linux tells that bfloat16 is multiplied in hardware: x86 and ARM.
CPU_BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "ARM's bfloat16 instructions"}

#: By the smallest CUDA compute capability. Earlier GPUs than 7.0 have no tensor cores; most multiply float16 slowly.
CUDA_FORMATS: tuple[tuple[tuple[int, int], PrecisionName, str], ...] = (
    ((8, 0), "bf16", "tensor cores for bfloat16"),
    ((7, 0), "fp16", "tensor cores for float16 alone"),
    ((0, 0), "fp32", "no tensor cores"),
)

#: Ceilings that a user may set for the CPU's matrix products under which bfloat16 is emulated (oneDNN's documentation,
#: "CPU dispatcher control").
_CEILINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}


def fastest_format(device: torch.device) -> Format:
    """The format to multiply in on a device, and why."""
    if device.type == "cuda":
        return cuda_format(torch.cuda.get_device_capability(device))
    if device.type == "cpu":
        return cpu_format(cpu_flags(), os.environ)
    return Format("fp32", f"nothing else is tried on {device.type}")


def cuda_format(capability: tuple[int, int]) -> Format:
    """The format of a GPU by its compute capability."""
    name, reason = next((name, reason) for least, name, reason in CUDA_FORMATS if capability >= least)
    return Format(name, reason)


def cpu_format(flags: frozenset[str], environment: Mapping[str, str]) -> Format:
    """The format of a CPU.

    Args:
        flags: its features, as Linux names them; empty where it does not say (float32: slower perhaps, never wrong).
        environment: where a ceiling on instruction sets may stand.
    """
    ceiling = next((environment[name].upper() for name in _CEILINGS if environment.get(name)), None)
    if ceiling in _WITHOUT_BF16:
        return Format("fp32", f"no bfloat16 up to {ceiling}, the ceiling in the environment")
    found = next((name for flag, name in CPU_BF16.items() if flag in flags), None)
    return Format("bf16", found) if found else Format("fp32", "this CPU would only emulate bfloat16")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The CPU's features ("flags" on x86, "Features" on ARM); empty where there is no such file."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())
