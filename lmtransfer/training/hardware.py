"""Where and how to compute: device, number format, threads, compilation, memory."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from typing import Literal

import torch

from lmtransfer.errors import ConfigError
from lmtransfer.system import ranks
from lmtransfer.system.cores import usable_cores
from lmtransfer.training import distributed
from lmtransfer.training.precision import Format, Precision, fastest_format

# mallopt's parameters, from glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True, slots=True)
class Hardware:
    """What ``setup`` has chosen.

    Attributes:
        device: where to compute.
        precision: number format of every matrix product, ready for the trainer.
        reason: why that format.
        threads: CPU threads in use.
        compile: whether to compile the blocks.
    """

    device: torch.device
    precision: Precision
    reason: str
    threads: int
    compile: bool

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else threads
        number_format = f"{self.precision.name} ({self.reason})"
        return f"{self.device} ({name}), {number_format}" + (", compiled" if self.compile else "")


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
        precision: ``auto`` takes what the hardware multiplies fast (``formats.fastest_format``).
        threads: CPU threads; None takes the cores at hand, shared among the ranks of this machine.
        compile: ``auto`` compiles on CUDA.
        keep_memory: on a CPU, keep large blocks for reuse (see ``tune_allocator``).

    Raises:
        ConfigError: the device is not there, or cannot compute in that precision.
    """
    chosen = _device(device)
    number_format = fastest_format(chosen) if precision == "auto" else Format(precision, "as set")
    if number_format.name == "fp16" and chosen.type == "cpu":
        raise ConfigError("hardware.precision=fp16 is for GPUs: use bf16, fp32 or auto on the CPU")
    torch.set_num_threads(threads or max(1, usable_cores() // ranks.local_world_size()))
    if chosen.type == "cpu" and keep_memory:
        tune_allocator()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return Hardware(
        device=chosen,
        precision=Precision(name=number_format.name, device=chosen),
        reason=number_format.reason,
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
