"""Measures how fast one process builds batches, with ``scripts/bench/batches.py``."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from .part import Measure, Numbers, Place
from .programs import python

_LENGTHS = (128, 512)


def measurements(place: Place) -> dict[str, Measure]:
    """Return the measurements: all objectives at both lengths, or one objective if the check is tiny."""
    return {str(length): partial(_run, place, length) for length in _LENGTHS}


def _run(place: Place, length: int, seconds: float) -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rates.json"
        words = ["-m", "scripts.bench.batches", f"--length={length}", f"--json={path}"]
        python([*words, *(["--only=mlm", "--batches=3"] if place.tiny else [])], seconds=seconds)
        return {"rates": json.loads(path.read_text(encoding="utf-8"))}
