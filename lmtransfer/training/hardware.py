"""Where and how to compute: device, number format, threads, compilation, memory."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from typing import Literal

import torch

from lmtransfer.errors import ConfigError
from lmtransfer.training import distributed
from lmtransfer.training.precision import Precision, PrecisionName

# mallopt's parameters, from glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True, slots=True)
class Hardware:
    """What ``setup`` has chosen.

    Attributes:
        device: where to compute.
        precision: number format, ready for the trainer.
        threads: CPU threads in use.
        compile: whether to compile the blocks.
    """

    device: torch.device
    precision: Precision
    threads: int
    compile: bool

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else f"{self.threads} threads"
        return f"{self.device} ({name}), {self.precision.name}" + (", compiled" if self.compile else "")


def setup(
    *,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    threads: int | None = None,
    compile: bool | Literal["auto"] = "auto",
    keep_memory: bool = True,
) -> Hardware:
    """Resolve the ``hardware`` settings and apply those that are global (threads, allocator, the current GPU).

    Args:
        device: ``auto`` takes the GPU of this rank if there is one, else the CPU.
        precision: ``auto`` takes bf16 where the hardware has it, fp16 on older GPUs, else fp32.
        threads: CPU threads; None takes the physical cores at hand, shared among the ranks of this machine.
        compile: ``auto`` compiles on CUDA.
        keep_memory: on a CPU, keep large blocks for reuse (see ``tune_allocator``).

    Raises:
        ConfigError: the device is not there, or cannot compute in that precision.
    """
    chosen = _device(device)
    number_format: PrecisionName = automatic_precision(chosen) if precision == "auto" else precision
    if number_format == "fp16" and chosen.type == "cpu":
        raise ConfigError("hardware.precision=fp16 is for GPUs: use bf16, fp32 or auto on the CPU")
    torch.set_num_threads(threads or max(1, physical_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    if chosen.type == "cpu" and keep_memory:
        tune_allocator()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return Hardware(
        device=chosen,
        precision=Precision(name=number_format, device=chosen),
        threads=torch.get_num_threads(),
        compile=chosen.type == "cuda" if compile == "auto" else compile,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", distributed.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"hardware.device={name} is not a device: use auto, cpu, cuda, cuda:<number> or mps"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = distributed.local_rank() if device.index is None else device.index
        if index >= count:
            raise ConfigError(f"hardware.device={name}: PyTorch sees {count} CUDA devices here; use auto or cpu")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("hardware.device=mps: PyTorch sees no Apple GPU here; use auto or cpu")
    if device.type not in ("cpu", "mps"):
        raise ConfigError(f"hardware.device={name}: use auto, cpu, cuda, cuda:<number> or mps")
    return device


def automatic_precision(device: torch.device) -> PrecisionName:
    """bf16 where the hardware multiplies it (CUDA from sm80 on, AVX512-BF16, AMX), fp16 on older GPUs, else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    if device.type == "cpu" and cpu_multiplies_bf16():
        return "bf16"
    return "fp32"


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU has AVX512-BF16 or AMX, as Linux tells; False where it does not say (slower, never wrong)."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.split())


def physical_cores() -> int:
    """Physical cores that this process may run on (two threads of one core do not multiply matrices faster)."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in allowed:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                siblings.add(file.read().strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def tune_allocator() -> bool:
    """Let glibc keep large blocks for reuse instead of returning them to the system after every use.

    A returned block is mapped anew and its pages fault in one by one: 10 to 20 % of a small encoder's step on a CPU.
    The cost is that memory once used stays with the process.

    Returns:
        Whether anything was changed; only glibc has these settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))
