"""How much memory training takes."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def memory_in_use() -> int:
    """Bytes of the GPU's memory reserved by this process, or of the process itself where there is no GPU in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, the one system that comes here
