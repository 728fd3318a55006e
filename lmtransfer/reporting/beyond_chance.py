"""Finds the zero-shot tasks on which a run beats chance, token frequencies and random weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from scipy import stats

from lmtransfer.config.revisions import split_revision, with_revision
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.table import Cell, Mark, ReportTable, plain_table
from lmtransfer.verdicts.difference import LEVEL
from lmtransfer.verdicts.shares import few_items_note
from lmtransfer.verdicts.verdict import holm

#: What an accuracy is compared with, and the heading of its column.
_REFERENCES = {"chance": "chance", "frequencies": "minus frequencies", "random weights": "minus random weights"}
_NOTE = (
    "Frequencies: choosing the alternative with the more frequent tokens. Random weights: the same model before "
    "training (evaluate control=true). 95 % intervals over items (exact for few items) and, with several seeds, over "
    "seeds."
)
_VERDICT_NOTE = (
    " Verdicts: two-sided tests, corrected over the tasks of a run (Holm), so that a run at chance everywhere has a "
    "false verdict in at most 5 of 100 cases."
)


def chance_table(entries: Sequence[Entry], *, revisions: bool = True) -> ReportTable | None:
    """Build the table of zero-shot runs on tasks with a chance level; None if there are none.

    Args:
        revisions: whether revisions of runs also get rows.
    """
    by_run: dict[tuple[str, int], dict[str, dict[str, Mapping[str, Any]]]] = {}
    for entry in entries:
        run = _run_without_seed(entry)
        if {"interval", "p_value", "chance"} <= set(entry.run.result) and (revisions or run[1] < 0):
            by_seed = by_run.setdefault(run, {}).setdefault(entry.task, {})
            by_seed[_source(entry)] = entry.run.result  # a seed that was scored twice counts once
    scores = {
        run: [_Score.of(task, list(by_seed.values())) for task, by_seed in tasks.items()]
        for run, tasks in by_run.items()
    }
    has_verdicts = all(entry.has_verdicts for entry in entries)
    used = [key for key in _REFERENCES if any(key in score.gains for part in scores.values() for score in part)]
    rows = [row for run in sorted(scores) for row in _rows(run, scores[run], used, has_verdicts=has_verdicts)]
    headings = ["run", "task", "accuracy (%)"]
    for key in used:
        beyond = "beyond it?" if key == "chance" else "beyond?"
        headings += [_REFERENCES[key], *([beyond] if has_verdicts else [])]
    note = _NOTE + (_VERDICT_NOTE if has_verdicts else "")
    return plain_table("Without training", headings, rows, note=note) if rows else None


def _source(entry: Entry) -> str:
    return str(entry.run.config.get("run", ""))


def _run_without_seed(entry: Entry) -> tuple[str, int]:
    """Return the path of the run without its seed, and its revision in tokens; -1 for the end of training."""
    path, revision = split_revision(_source(entry))
    return re.sub(r"/seed-\d+/?$", "", path), -1 if revision is None else revision


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A mean over items and seeds, with its 95 % interval, and its p value against no difference."""

    mean: float
    interval: tuple[float, float]
    p_value: float

    @classmethod
    def of(
        cls, means: Sequence[float], intervals: Sequence[Sequence[float]], p_values: Sequence[float], *, null: float
    ) -> _Estimate:
        """Average the means of the seeds, each with its interval and p value over items.

        All seeds choose between the same items, so the error over items does not shrink with their number. The error
        over seeds is added to it, with Satterthwaite's degrees of freedom.
        """
        mean = fmean(means)
        if len(means) == 1:
            low, high = intervals[0]
            return cls(mean, (low, high), p_values[0])
        items = fmean(((high - low) / (2 * stats.norm.ppf(0.975))) ** 2 for low, high in intervals)
        seeds = variance(means) / len(means)
        freedom = (items + seeds) ** 2 * (len(means) - 1) / seeds**2 if seeds else math.inf
        error = math.sqrt(items + seeds)
        reach = float(stats.t.ppf(0.975, freedom)) * error
        p_value = float(2 * stats.t.sf(abs(mean - null) / error, freedom)) if error else float(mean == null)
        return cls(mean, (mean - reach, mean + reach), p_value)

    def text(self, sign: str = "") -> str:
        """Format the mean and its 95 % interval, in percent."""
        low, high = self.interval
        return f"{100 * self.mean:{sign}.1f} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"


@dataclass(frozen=True, slots=True)
class _Score:
    """The accuracy of a run on a task, and its gains over the measured references, keyed by their names."""

    task: str
    num_items: int
    num_seeds: int
    accuracy: _Estimate
    chance: float
    gains: Mapping[str, _Estimate]

    @classmethod
    def of(cls, task: str, results: Sequence[Mapping[str, Any]]) -> _Score:
        """Combine the results of the seeds."""
        chance = float(results[0]["chance"])
        accuracy = _Estimate.of(
            [r["metrics"]["accuracy"] for r in results],
            [r["interval"] for r in results],
            [r["p_value"] for r in results],
            null=chance,
        )
        gains = {"chance": replace(accuracy, mean=accuracy.mean - chance)}
        for reference, key in (("frequencies", "minus_token_frequencies"), ("random weights", "minus_random_weights")):
            if all(key in result for result in results):
                parts = [result[key] for result in results]
                gains[reference] = _Estimate.of(
                    [p["accuracy"] for p in parts],
                    [p["interval"] for p in parts],
                    [p["p_value"] for p in parts],
                    null=0,
                )
        return cls(task, int(results[0].get("num_scored") or 0), len(results), accuracy, chance, gains)


def _rows(
    run: tuple[str, int], scores: Sequence[_Score], used: Sequence[str], *, has_verdicts: bool
) -> Iterator[list[str | Cell]]:
    """Yield a row for each task of a run; the verdicts against a reference are corrected for the number of tasks."""
    path, revision = run
    name = with_revision(path.rstrip("/").rpartition("/")[2], None if revision < 0 else revision)
    verdicts: dict[str, Iterator[float]] = {
        key: iter(holm([score.gains[key].p_value for score in scores if key in score.gains])) for key in used
    }
    for place, score in enumerate(scores):
        seeds = f", {score.num_seeds} seeds" if score.num_seeds > 1 else ""
        few = f" ({few_items_note(score.num_items)})" if few_items_note(score.num_items) else ""
        row: list[str | Cell] = [f"{name}{seeds}" if place == 0 else "", f"{score.task}{few}", score.accuracy.text()]
        for key in used:
            gain = score.gains.get(key)
            if gain is None:
                row += ["", ""] if has_verdicts else [""]
                continue
            row.append(f"{100 * score.chance:.1f}" if key == "chance" else gain.text("+"))
            if has_verdicts:
                row.append(_verdict(gain, next(verdicts[key])))
        yield row


def _verdict(gain: _Estimate, p_value: float) -> Cell:
    text = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    if p_value > LEVEL:
        return Cell(f"not shown, {text}", mark=Mark("even", "="))
    if gain.mean > 0:
        return Cell(f"yes, {text}", mark=Mark("better", "\u25b2"))
    return Cell(f"below, {text}", mark=Mark("worse", "\u25bc"))
