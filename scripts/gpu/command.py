"""Runs a command of the toolkit as a user does, and reads its results."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .part import Numbers, Place
from .programs import python


def folder_of(place: Place, command: str, name: str) -> Path:
    """Return the run directory of a command."""
    return place.work / "runs" / command / name


def is_finished(place: Place, command: str, name: str) -> bool:
    """Whether the run of an earlier measurement still exists; the system may have removed the folder of runs."""
    return (folder_of(place, command, name) / "result.json").is_file()


def result_of(place: Place, command: str, name: str) -> dict[str, Any]:
    """Read the result of a finished run."""
    path = folder_of(place, command, name) / "result.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def records_of(place: Place, command: str, name: str) -> list[dict[str, Any]]:
    """Read the logged steps of a run; empty if the run has no training."""
    log = sorted(folder_of(place, command, name).rglob("metrics.jsonl"))
    return [json.loads(line) for line in log[0].read_text(encoding="utf-8").splitlines()] if log else []


def run(
    place: Place, command: str, name: str, words: Sequence[str], *, seconds: float, device: str | None = None
) -> Numbers:
    """Run a command anew.

    Args:
        place: where the check runs.
        command: name of the command.
        name: name of the run.
        words: the command's other words.
        seconds: time limit.
        device: the device; None for the check's device.

    Returns:
        Metrics, duration, peak memory and speed of the run. The speed of a training is the median over the logged steps
        in its second half, that of an evaluation is over the whole evaluation.
    """
    shutil.rmtree(folder_of(place, command, name), ignore_errors=True)  # left by an earlier try
    own = [f"name={name}", f"output_root={place.work}/runs", f"hardware.device={device or place.device}"]
    python(["-m", "lmtransfer", command, *words, *own], seconds=seconds)
    result = result_of(place, command, name)
    numbers: Numbers = {"seconds": result["seconds"], "metrics": result["metrics"]}
    records = records_of(place, command, name)
    rates = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
    numbers["tokens_per_second"] = statistics.median(rates[len(rates) // 2 :]) if rates else result["tokens_per_second"]
    if result.get("flops"):
        numbers["flops_per_token"] = result["flops"] / result["tokens"]
    if result.get("peak_memory"):
        numbers["memory"] = result["peak_memory"]
    return numbers
