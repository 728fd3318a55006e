"""The peak memory use of a training run: of its tensors on a GPU, or of the whole process on a CPU."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_HIGHEST = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def forget_peak(device: torch.device) -> None:
    """Restart the measurement, so that earlier work of this process does not count; not supported on macOS."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory use since ``forget_peak``, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        match = _HIGHEST.search(Path("/proc/self/status").read_text())
        if match is not None:
            return 1024 * int(match[1])
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
