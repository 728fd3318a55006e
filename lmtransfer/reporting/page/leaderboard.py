"""The leaderboard: one row for each scored run of a task, which readers sort by score, difference and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lmtransfer.reporting.page.table import Cell, Group, Heading, Line, Table, mark_of
from lmtransfer.reporting.render.cells import metric_heading, other_metrics_texts, score_text
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import higher_is_better, number
from lmtransfer.reporting.verdict_text import interval_text, verdict_text
from lmtransfer.system.units import count, duration, shown_difference

_HEADINGS = (
    Heading("task", "ascending"),
    Heading("run", "ascending"),
    Heading("model", "ascending"),
    Heading("objective", "ascending"),
    Heading("transfer", "ascending"),
    Heading("score", "descending"),
    Heading("difference to control", "descending"),
    Heading("pretraining tokens", "ascending"),
    Heading("pretraining time", "ascending"),
    Heading("parameters", "ascending"),
    Heading("trained parameters", "ascending"),
    Heading("pretraining FLOP", "ascending"),
)


def leaderboard(entries: Sequence[Entry]) -> Table | None:
    """All scored runs of tasks, task by task, the best score first; None if there are none.

    Columns without any value are left out.
    """
    scored = [entry for entry in entries if entry.score is not None and not entry.is_pretraining]
    if not scored:
        return None
    lines = tuple(Line(_cells(entry)) for entry in sorted(scored, key=_position))
    return Table("Leaderboard", _HEADINGS, (Group(lines),)).without_empty()


def _position(entry: Entry) -> tuple[str, str, float, float, str]:
    """Sort key: the group, then the best score."""
    assert entry.score is not None
    sign = -1.0 if higher_is_better(entry.metric or "", entry.run.result) else 1.0
    value = sign * entry.score.mean
    best = value if math.isfinite(value) else math.inf
    return (entry.task, entry.split, float(entry.num_train or "inf"), best, entry.name)


def _cells(entry: Entry) -> tuple[Cell, ...]:
    metric, score = entry.metric or "", entry.score
    seeds = () if score is None or score.n < 2 else (f"{score.n} seeds",)
    cost = entry.cost
    flop = None if entry.source is None else number(entry.source.result.get("flops"))
    return (
        Cell(entry.group, sort=entry.group),
        Cell(entry.name, problem="" if entry.run.state == "finished" else entry.run.state, sort=entry.name),
        Cell(entry.model, sort=entry.model or None),
        Cell(entry.objective, notes=(entry.corpus,) if entry.corpus else (), sort=entry.objective or None),
        Cell(entry.transfer, sort=entry.transfer or None),
        Cell(
            score_text(score, metric),
            notes=(metric_heading(metric), *seeds, *other_metrics_texts(entry.other_metrics)),
            sort=None if score is None else score.mean,
        ),
        _difference(entry),
        Cell(_or_empty(entry.pretraining_tokens, count), sort=entry.pretraining_tokens),
        Cell(_or_empty(entry.pretraining_seconds, duration), sort=entry.pretraining_seconds),
        Cell(_or_empty(entry.num_parameters, count), sort=entry.num_parameters),
        Cell(
            _or_empty(cost.num_trained, count),
            notes=tuple(filter(None, (cost.share_text, cost.memory_text, cost.seconds_text))),
            sort=cost.num_trained,
        ),
        Cell("" if flop is None else f"{flop:.1e}", sort=flop),
    )


def _difference(entry: Entry) -> Cell:
    found, metric = entry.difference, entry.metric or ""
    if found is None:
        return Cell("")
    interval = interval_text(found, metric)
    notes = ((f"({interval})",) if interval else ()) + (verdict_text(found, metric),)
    return Cell(shown_difference(found.delta, metric), notes=notes, sort=found.delta, mark=mark_of(found))


def _or_empty(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)
