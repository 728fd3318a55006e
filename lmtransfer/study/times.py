"""How long the runs of a study took, ``logs/times.json``: seconds by the clock, over all their continuations.

The result of a run has the seconds of its training alone. A transfer also chooses rates, trains controls, and reads.
"""

from __future__ import annotations

import json
from pathlib import Path

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.untrusted.documents import read_json
from lmtransfer.untrusted.schema import Entries, Real

_NAME = "logs/times.json"
_SCHEMA = Entries(Real(least=0))


def read_times(folder: Path) -> dict[str, float]:
    """Seconds of each run that has ended at least once, by the key of its job; empty for older studies.

    Raises:
        RunDirectoryError: the file cannot be read.
    """
    path = folder / _NAME
    found: dict[str, float] = read_json(path, _SCHEMA, error=RunDirectoryError) if path.exists() else {}
    return found


def add_time(folder: Path, key: str, seconds: float, *, resume: bool) -> float:
    """Add seconds to those of a run; returns the sum.

    Args:
        folder: the folder of the study.
        key: the key of its job.
        seconds: how long it ran now.
        resume: whether it had begun before, so that earlier seconds count.

    Raises:
        RunDirectoryError: the file cannot be read.
    """
    times = read_times(folder)
    times[key] = round(seconds + (times.get(key, 0.0) if resume else 0.0), 1)
    path = folder / _NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(times, indent=1) + "\n")
    return times[key]
