"""Which number format the hardware multiplies fast: one table for every matrix product of a run.

A format that a processor only emulates is slower than float32 by a factor of four and more, so the choice is made from
what the hardware has, once, and used for autocast, Newton-Schulz, frozen features and evaluation alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lmtransfer.training.precision import PrecisionName


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
