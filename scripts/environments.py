"""The environments of measured processes: whose setting of how threads wait they have, and what runs beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lmtransfer.system.waiting import SPIN_COUNT, USERS_OWN, set_waiting

#: What GNU's runtime takes where nothing is set. Said outright, since our package sets its own where it finds none.
RUNTIMES_OWN = "300000"


def environment(*, ours: bool, **more: str) -> dict[str, str]:
    """Of a process without network, with our waiting of threads, or as PyTorch comes.

    Args:
        ours: with our setting, or else the runtime's own; one that the user has stays.
        more: further variables.
    """
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **more}
    if found.get("GOMP_SPINCOUNT") == str(SPIN_COUNT):  # from our package, in this process
        del found["GOMP_SPINCOUNT"]
    if ours:
        set_waiting(found)
    elif not any(found.get(name) for name in USERS_OWN):
        found["GOMP_SPINCOUNT"] = RUNTIMES_OWN
    return found


#: Variables that show a CPU with AVX512 as one with AVX2 alone.
AVX2: Mapping[str, str] = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


@contextmanager
def busy_process() -> Iterator[None]:
    """One other process of normal priority that never rests, in a session of its own, as another user's would be."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()
