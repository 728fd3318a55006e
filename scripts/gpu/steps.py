"""Measures BERT base on full and ragged rows: our trainer, the peer's, a step's phases, and the device's ceiling."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, replace
from functools import partial

from ..bench.setting import Flags, Setting
from ..bench.side import measure_side
from .part import Measure, Numbers, Place
from .sizes import BASE, TINY

_BASE = Setting(device="cuda", **asdict(BASE), vocab_size=30528, dropout=0.1, threads=4, steps=40, warmup=10)
_TINY = replace(_BASE, device="cpu", **asdict(TINY), vocab_size=8192, threads=1, steps=2, warmup=2)
_ROWS = {"full": "pretrain", "ragged": "ragged"}


def bert(place: Place) -> dict[str, Measure]:
    """Return the measurements of our trainer."""
    return {name: partial(_side, "ours", setting) for name, setting in _settings(place).items()}


def trainer(place: Place) -> dict[str, Measure]:
    """Return the measurements of ``transformers.Trainer``, compiled except on a CPU, to save time."""
    flags = Flags(compiled=not place.tiny)
    return {name: partial(_peer, setting, flags) for name, setting in _settings(place).items()}


def phases(place: Place) -> dict[str, Measure]:
    """Return the measurements of the phases of our step."""
    return {name: partial(_side, "phases", setting) for name, setting in _settings(place).items()}


def ceiling(place: Place) -> dict[str, Measure]:
    """Return the measurement of the fastest matrix products."""
    return {"matrix products": partial(_side, "ceiling", next(iter(_settings(place).values())))}


def _settings(place: Place) -> dict[str, Setting]:
    base = _TINY if place.tiny else _BASE
    tokens = 1024 if place.tiny else 32768 if place.large else 8192
    return {
        f"{length} {rows}": replace(base, part=part, length=length, rows=tokens // length)
        for length in (128, 512)
        for rows, part in _ROWS.items()
    }


def _side(side: str, setting: Setting, seconds: float) -> Numbers:
    numbers: Numbers = measure_side(side, setting, Flags(), timeout=seconds)
    if "mean_length" in numbers:
        numbers["flops_per_token"] = setting.flops_per_token(setting.vocab_size or 0, numbers["mean_length"])
    return numbers


def _peer(setting: Setting, flags: Flags, seconds: float) -> Numbers:
    if not all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
        return {"skipped": "transformers with accelerate is not installed"}
    numbers: Numbers = measure_side("trainer", setting, flags, timeout=seconds)
    return numbers
