"""Finds the zero-shot tasks on which a run chooses better than chance, and better than token frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

from scipy import stats

from lmtransfer.config.revisions import split_revision
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.table import Cell, Mark, ReportTable, plain_table
from lmtransfer.verdicts.compare import holm
from lmtransfer.verdicts.difference import LEVEL

#: A gain in accuracy, and the bounds of its 95 % interval.
_Gain: TypeAlias = tuple[float, float, float]
_HEADINGS = ("run", "task", "accuracy (%)", "chance", "beyond it?", "minus frequencies", "beyond them?")
_NOTE = (
    "Frequencies: choosing the alternative with the more frequent tokens. 95 % intervals over items. Verdicts: "
    "two-sided tests over items, corrected over the tasks of a run (Holm), so that a run at chance everywhere has a "
    "false verdict in at most 5 of 100 cases."
)


def chance_table(entries: Sequence[Entry], *, revisions: bool = True) -> ReportTable | None:
    """Build the table of runs that were scored on choices without training; None if there are none.

    Args:
        revisions: whether revisions of runs get rows too.
    """
    chosen = [entry for entry in entries if "interval" in entry.run.result and "chance" in entry.run.result]
    chosen = [entry for entry in chosen if revisions or split_revision(_source(entry))[1] is None]
    rows: list[list[str | Cell]] = []
    for source, part in groupby(sorted(chosen, key=_source), key=_source):
        members = list(part)
        over_chance = _verdicts(list(map(_gain_over_chance, members)))
        gains = list(map(_gain_over_frequencies, members))
        over_frequencies = iter(_verdicts([gain for gain in gains if gain is not None]))
        for place, (entry, gain) in enumerate(zip(members, gains, strict=True)):
            low, high = entry.run.result["interval"]
            rows.append(
                [
                    source.rstrip("/").rpartition("/")[2] if place == 0 else "",
                    entry.task,
                    f"{100 * entry.run.result['metrics']['accuracy']:.1f} ({100 * low:.1f} to {100 * high:.1f})",
                    f"{100 * entry.run.result['chance']:.1f}",
                    over_chance[place],
                    "" if gain is None else f"{100 * gain[0]:+.1f} ({100 * gain[1]:+.1f} to {100 * gain[2]:+.1f})",
                    "" if gain is None else next(over_frequencies),
                ]
            )
    return plain_table("Without training", _HEADINGS, rows, note=_NOTE) if rows else None


def _source(entry: Entry) -> str:
    return str(entry.run.config.get("run", ""))


def _gain_over_chance(entry: Entry) -> _Gain:
    result = entry.run.result
    low, high = result["interval"]
    return result["metrics"]["accuracy"] - result["chance"], low - result["chance"], high - result["chance"]


def _gain_over_frequencies(entry: Entry) -> _Gain | None:
    gain = entry.run.result.get("minus_token_frequencies")
    return None if gain is None else (gain["accuracy"], *gain["interval"])


def _p_value(gain: _Gain) -> float:
    """Return the two-sided p value of a gain, assuming a normal distribution with this 95 % interval."""
    difference, low, high = gain
    deviation = (high - low) / (2 * stats.norm.ppf(0.975))
    if deviation == 0:
        return float(difference == 0)
    return float(2 * stats.norm.sf(abs(difference) / deviation))


def _verdicts(gains: Sequence[_Gain]) -> list[Cell]:
    """Return the verdicts on several gains, corrected by Holm's method."""
    return list(map(_verdict, gains, holm(list(map(_p_value, gains)))))


def _verdict(gain: _Gain, p_value: float) -> Cell:
    text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    if p_value > LEVEL:
        return Cell(f"not shown, {text}", mark=Mark("even", "="))
    if gain[0] > 0:
        return Cell(f"yes, {text}", mark=Mark("better", "\u25b2"))
    return Cell(f"below, {text}", mark=Mark("worse", "\u25bc"))
