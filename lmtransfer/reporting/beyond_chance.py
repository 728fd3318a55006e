"""Choices without training: on which tasks a run is beyond chance, and beyond token frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from scipy import stats

from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.table import Cell, Mark, ReportTable, plain_table

LEVEL = 0.05
_HEADINGS = ("run", "task", "accuracy (%)", "chance", "beyond it?", "minus frequencies", "beyond them?")
_NOTE = (
    "Frequencies: choosing the alternative with the more frequent tokens. 95 % intervals over items. Verdicts: "
    "two-sided tests over items, corrected over the tasks of a run (Holm), so that a run at chance everywhere has a "
    "false verdict in at most 5 of 100 cases."
)


def chance_table(entries: Sequence[Entry], *, revisions: bool = True) -> ReportTable | None:
    """Build the table of the runs that chose between alternatives without training; None if there are none.

    Args:
        revisions: whether the revisions of runs have rows too.
    """
    chosen = [entry for entry in entries if "interval" in entry.run.result and "chance" in entry.run.result]
    chosen = [entry for entry in chosen if revisions or "@" not in _run_name(entry)]
    rows: list[list[str | Cell]] = []
    for name, part in groupby(sorted(chosen, key=_run_name), key=_run_name):
        members = list(part)
        against_chance = holm([_p_value(_gain(entry, "chance")) for entry in members])
        frequencies = [_gain(entry, "minus_token_frequencies") for entry in members]
        known = [place for place, gain in enumerate(frequencies) if gain is not None]
        corrected = dict(zip(known, holm([_p_value(frequencies[place]) for place in known]), strict=True))
        for place, (entry, p_value) in enumerate(zip(members, against_chance, strict=True)):
            low, high = entry.run.result["interval"]
            accuracy, gain, more = entry.run.result["metrics"]["accuracy"], _gain(entry, "chance"), frequencies[place]
            rows.append(
                [
                    name if place == 0 else "",
                    entry.task,
                    f"{100 * accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f})",
                    f"{100 * entry.run.result['chance']:.1f}",
                    _verdict(gain, p_value),
                    "" if more is None else f"{100 * more[0]:+.1f} ({100 * more[1]:+.1f} to {100 * more[2]:+.1f})",
                    "" if more is None else _verdict(more, corrected[place]),
                ]
            )
    return plain_table("Without training", _HEADINGS, rows, note=_NOTE) if rows else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm 1979), in the same order."""
    order = np.argsort(p_values)
    left = len(p_values) - np.arange(len(p_values))
    corrected = np.minimum(1.0, np.maximum.accumulate(left * np.asarray(p_values)[order])) if len(order) else order
    result = np.empty(len(p_values))
    result[order] = corrected
    return result.tolist()


def _run_name(entry: Entry) -> str:
    return str(entry.run.config.get("run", "")).rstrip("/").rpartition("/")[2]


def _gain(entry: Entry, over: str) -> Any:
    """Return the accuracy minus that of guessing or of token frequencies, with its interval; None if unknown."""
    result = entry.run.result
    if over == "chance":
        low, high = result["interval"]
        return result["metrics"]["accuracy"] - result["chance"], low - result["chance"], high - result["chance"]
    gain = result.get(over)
    return None if gain is None else (gain["accuracy"], *gain["interval"])


def _p_value(gain: tuple[float, float, float]) -> float:
    """Return the two-sided p value of a gain with a 95 % interval, by the normal distribution."""
    difference, low, high = gain
    deviation = (high - low) / (2 * stats.norm.ppf(0.975))
    if deviation == 0:
        return float(difference == 0)
    return float(2 * stats.norm.sf(abs(difference) / deviation))


def _verdict(gain: tuple[float, float, float], p_value: float) -> Cell:
    text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    if p_value > LEVEL:
        return Cell(f"not shown, {text}", mark=Mark("even", "="))
    if gain[0] > 0:
        return Cell(f"yes, {text}", mark=Mark("better", "\u25b2"))
    return Cell(f"below, {text}", mark=Mark("worse", "\u25bc"))
