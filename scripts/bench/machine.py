"""The processor's name, the environments of measured processes, and a busy process beside them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from lmtransfer.system.cores import SPIN_COUNT, USERS_OWN, set_waiting

#: The default of GNU's runtime, set explicitly, since our package sets its own value if the variable is not set.
RUNTIME_DEFAULT = "300000"


def environment(*, ours: bool, **more: str) -> dict[str, str]:
    """Return the environment of a process without network, with our setting for waiting threads or PyTorch's default.

    Args:
        ours: whether to use our setting instead of the runtime's default; a value set by the user is kept.
        more: further variables.
    """
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **more}
    if variables.get("GOMP_SPINCOUNT") == str(SPIN_COUNT):  # set by our package in this process
        del variables["GOMP_SPINCOUNT"]
    if ours:
        set_waiting(variables)
    elif not any(variables.get(name) for name in USERS_OWN):
        variables["GOMP_SPINCOUNT"] = RUNTIME_DEFAULT
    return variables


#: Variables that make libraries use a CPU with AVX512 as if it had only AVX2.
AVX2: Mapping[str, str] = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


@contextmanager
def busy_process() -> Iterator[None]:
    """Run one other busy process of normal priority in its own session, as if another user had started it."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def processor(device: str) -> str:
    """Return the name of the processor, as the system reports it."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
