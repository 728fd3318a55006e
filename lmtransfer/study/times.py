"""How long the runs of a study took, ``logs/times.json``: seconds by the clock, over all their continuations.

The result of a run has the seconds of its training alone. A transfer also chooses rates, trains controls, and reads.
"""

from __future__ import annotations

import json
from pathlib import Path

from lmtransfer.config.types import NonNegative
from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json

_NAME = "logs/times.json"


def read_times(folder: Path) -> dict[str, float]:
    """Seconds of each run that has ended at least once, by the key of its job.

    Raises:
        RunDirectoryError: the file cannot be read.
    """
    path = folder / _NAME
    return read_json(path, dict[str, NonNegative], error=RunDirectoryError) if path.exists() else {}


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
