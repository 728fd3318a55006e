"""The hardware settings: device, precision, threads, compilation and memory use."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import platform
import re
import resource
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal

import torch

from lmtransfer.errors import ConfigError
from lmtransfer.system import ranks
from lmtransfer.system.cores import usable_cores
from lmtransfer.training import process_group
from lmtransfer.training.precision import Precision, PrecisionChoice, fastest_precision

#: The GPU of this process and the lock file that claims it, by the names of the GPUs it was selected from.
_held: dict[tuple[str, ...], tuple[int, IO[str]]] = {}

# parameters of mallopt, from glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Minimum compute capability at which blocks are compiled: Triton no longer supports Volta (7.0).
_COMPILES_FROM = (7, 5)
#: Default maximum number of batch-building processes per rank: they build several million tokens a second.
_MOST_WORKERS = 4
_HIGHEST = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def claim_gpu(names: Sequence[str], *, folder: Path | None = None) -> int:
    """Claim the GPU with the fewest claims by this user's processes until this process ends, and return its index."""
    if tuple(names) in _held:
        return _held[tuple(names)][0]
    folder = folder or Path(tempfile.gettempdir()) / f"lmtransfer-gpus-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in itertools.count():
            for index, name in enumerate(names):
                file = (folder / f"{name}.{place}").open("a")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.close()
                    continue
                _held[tuple(names)] = index, file
                return index
    except OSError:  # no locks here: assume that this is the only process
        pass
    return 0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware and how to use it, as chosen by ``setup``.

    Attributes:
        reason: why this precision was chosen.
        residual: dtype of the residual streams in training; see ``layers.residual``.
        residual_set: whether ``residual`` was set explicitly, so that a model without a residual stream is an error.
        uncompiled: why blocks are not compiled on a GPU that might support it; empty if there is no reason.
    """

    device: torch.device
    precision: Precision
    reason: str
    threads: int
    compile: bool
    activation_checkpointing: bool = False
    residual: torch.dtype = torch.float32
    residual_set: bool = False
    uncompiled: str = ""
    num_workers: int = 0
    shard: bool = False
    wait_seconds: float = process_group.WAIT_SECONDS

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else threads
        precision = f"{self.precision.name} ({self.reason})"
        compiled = ", compiled" if self.compile else f", not compiled: {self.uncompiled}" if self.uncompiled else ""
        workers = f", {self.num_workers} worker{'s' if self.num_workers > 1 else ''}" if self.num_workers else ""
        recomputed = ", layers recomputed in the backward pass" if self.activation_checkpointing else ""
        residual = "" if self.residual == torch.float32 else ", residual stream in bfloat16"
        sharded = ", weights sharded over the ranks" if self.shard else ""
        return f"{self.device} ({name}), {precision}{residual}{compiled}{recomputed}{sharded}{workers}"


def setup(
    *,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    threads: int | None = None,
    compile: bool | Literal["auto"] = "auto",
    activation_checkpointing: bool = False,
    residual: Literal["auto", "float32", "bfloat16"] = "float32",
    keep_memory: bool = True,
    keep_threads: bool = False,
    num_workers: int | None = 0,
    shard: bool = False,
    wait_seconds: float = process_group.WAIT_SECONDS,
) -> Hardware:
    """Resolve the ``hardware`` settings and apply the global ones (threads, allocator, current GPU).

    Args:
        residual: dtype of the residual streams in training; bfloat16 requires the precision bf16, and ``auto`` selects
            bfloat16 if a GPU has that precision.
        keep_memory: on a CPU, keep large blocks for reuse (see ``tune_allocator``).
        keep_threads: leave PyTorch's number of threads unchanged, for a caller that has set it.
    """
    selected = _device(device)
    chosen = fastest_precision(selected) if precision == "auto" else PrecisionChoice(precision, "as set")
    if chosen.name == "fp16" and selected.type == "cpu":
        raise ConfigError("hardware.precision=fp16 is for GPUs only: use bf16, fp32 or auto on the CPU")
    if residual == "bfloat16" and chosen.name != "bf16":
        raise ConfigError(
            f"hardware.residual=bfloat16 needs hardware.precision=bf16, but the precision is {chosen.name} "
            f"({chosen.reason}): use hardware.residual=float32"
        )
    if not keep_threads:
        torch.set_num_threads(threads or default_threads())
    if selected.type == "cpu" and keep_memory:
        tune_allocator()
    if selected.type == "cuda":
        torch.cuda.set_device(selected)
    missing = missing_to_compile(selected) if selected.type == "cuda" and compile else ""
    if missing and compile is True:
        raise ConfigError(f"hardware.compile=true is not possible here: {missing}; use auto or false")
    if selected.type == "cuda":
        _activate_newer_flash_attention(selected)
    in_bf16 = residual == "bfloat16" or (residual == "auto" and selected.type == "cuda" and chosen.name == "bf16")
    return Hardware(
        device=selected,
        precision=Precision(name=chosen.name, device=selected),
        reason=chosen.reason,
        threads=torch.get_num_threads(),
        compile=selected.type == "cuda" and not missing if compile == "auto" else compile,
        activation_checkpointing=activation_checkpointing,
        residual=torch.bfloat16 if in_bf16 else torch.float32,
        residual_set=residual != "auto",
        uncompiled=missing,
        num_workers=useful_workers(selected) if num_workers is None else num_workers,
        shard=shard and ranks.world_size() > 1,
        wait_seconds=wait_seconds,
    )


def _activate_newer_flash_attention(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device)[0] == 9:
        from torch.nn.attention import activate_flash_attention_impl

        with suppress(ImportError):
            activate_flash_attention_impl("FA3")


def default_threads() -> int:
    """Return the CPU threads of this process: ``OMP_NUM_THREADS``, or the usable cores divided among local ranks.

    torchrun sets the variable to 1 for its processes if the user has not set it; the cores are then divided as well.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list has one number per nesting level
    by_torchrun = threads == "1" and "TORCHELASTIC_RUN_ID" in os.environ
    if threads.isdigit() and int(threads) and not by_torchrun:
        return int(threads)
    return max(1, usable_cores() // ranks.local_world_size())


def useful_workers(device: torch.device) -> int:
    """Return the default number of processes that build batches for each rank.

    On CUDA, this is one fewer than the rank's cores, because the rank's own process needs one, and at most 4. Elsewhere
    it is 0, because a CPU that computes the step has no core to spare.
    """
    if device.type != "cuda":
        return 0
    return min(_MOST_WORKERS, max(0, usable_cores() // ranks.local_world_size() - 1))


def missing_to_compile(device: torch.device) -> str:
    """Return the reason why code cannot be compiled for a GPU; empty if it can.

    The code is written in Triton, which compiles a small C program to launch each kernel.
    """
    if torch.cuda.get_device_capability(device) < _COMPILES_FROM:
        return "Triton needs a newer GPU"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "there is no C compiler (gcc or clang)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "the C headers of Python are not installed (Python.h)"
    return ""


def _device(name: str) -> torch.device:
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        _check_one_each()
        return torch.device("cuda", _own_gpu())
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"hardware.device={name} is not a device: use auto, cpu, cuda, cuda:<number> or mps"
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if count and ":" not in name:
            _check_one_each()
            return torch.device("cuda", _own_gpu())
        index = device.index or 0
        if index >= count:
            raise ConfigError(f"hardware.device={name}: PyTorch finds {count} CUDA devices here; use auto or cpu")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("hardware.device=mps: PyTorch finds no Apple GPU here; use auto or cpu")
    if device.type not in ("cpu", "mps"):
        raise ConfigError(f"hardware.device={name} is not supported: use auto, cpu, cuda, cuda:<number> or mps")
    return device


def _own_gpu() -> int:
    """Return the GPU of this process: by rank under ``torchrun``, otherwise one that the fewest processes use."""
    count = torch.cuda.device_count()
    if ranks.local_world_size() > 1 or process_group.world_size() > 1 or count <= 1:
        return ranks.local_rank()
    names = [str(getattr(torch.cuda.get_device_properties(index), "uuid", index)) for index in range(count)]
    return claim_gpu(names)


def _check_one_each() -> None:
    """Check that this machine has a GPU for each of its processes; every process gets the same result."""
    processes, count = ranks.local_world_size(), torch.cuda.device_count()
    if processes > count:
        raise ConfigError(
            f"torchrun started {processes} processes on this machine, but PyTorch finds only {count} CUDA devices: use "
            f"--nproc-per-node={count}, or hardware.device=cpu"
        )


def tune_allocator() -> bool:
    """Make glibc keep large blocks for reuse instead of returning them to the system after every use.

    Otherwise, each block is mapped again at its next use, with a page fault per page, which takes 10 to 20 % of the
    training step of a small encoder on a CPU. The disadvantage is that the process never returns this memory.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak that ``peak_memory`` returns, so that earlier work does not count; no effect on macOS."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory use since ``reset_peak_memory``, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        match = _HIGHEST.search(Path("/proc/self/status").read_text())
        if match is not None:
            return 1024 * int(match[1])
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
