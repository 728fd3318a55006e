"""The table of all runs, with three selections of columns, and the leaderboard over the same cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from lmtransfer.reporting.render.cells import difference_cells, metric_heading, metrics_cell, score_cell
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import Row
from lmtransfer.reporting.runs.scores import higher_is_better, number
from lmtransfer.reporting.table import Cell, Column, Group, Line, Table
from lmtransfer.reporting.verdict_text import detectable_text, needed_text
from lmtransfer.system.units import count, duration, format_metric

_DIFFERENCE = Column("difference to control", ("difference", "({interval})"))

#: Columns for Markdown and LaTeX: one line per run.
WIDE = (
    Column("run", ("run", "({state})")),
    Column("model"),
    Column("objective"),
    Column("corpus"),
    Column("task"),
    Column("transfer"),
    Column("seeds"),
    Column("metric"),
    Column("mean", ("mean", "reason")),
    Column("median"),
    Column("other metrics", separator=", "),
    _DIFFERENCE,
    Column("verdict"),
    Column("difference to baseline", ("difference to baseline", "({interval to baseline})")),
    Column("verdict against baseline", ("verdict to baseline",)),
    Column("smallest detectable"),
    Column("seeds needed"),
    Column("pretraining", ("{pretraining tokens} tokens", "pretraining time"), separator=", "),
    Column("parameters"),
    Column("cost", separator=", "),
    Column("tokens/s"),
)
#: Columns for the page: under group headings, with the pretraining below the name of the run.
PAGE = (
    replace(WIDE[0], notes=("weights",), problem="warning"),
    *(column for column in WIDE[1:] if column.heading not in ("model", "objective", "corpus", "task", "metric")),
)
#: Columns for a terminal 100 characters wide: a few lines of text per run.
NARROW = (
    Column("run", notes=("weights", "reason", "warning"), width=(18, 36)),
    Column("transfer", notes=("{several seeds} seeds",), width=(9, 10)),
    Column(
        "mean",
        ("mean", "state without score"),
        notes=("median {median}", "other metrics", "state of score"),
        width=(12, 15),
        has_unit=True,
    ),
    Column(
        "difference to control",
        ("difference",),
        notes=("interval", "verdict", "detectable: {smallest detectable for now}", "seeds needed: {seeds needed}")
        + ("to {difference to baseline}", "interval to baseline", "verdict to baseline"),
        width=(14, 16),
    ),
    Column("pretraining", ("{pretraining tokens} tokens",), notes=("pretraining time",), width=(11, 12)),
    Column("size, cost", ("parameters",), notes=("{tokens/s} tok/s", "cost in short"), width=(10, 14)),
)
_LEADERBOARD = (
    Column("task", first="ascending"),
    Column("run", problem="state", first="ascending"),
    Column("model", first="ascending"),
    Column("objective", notes=("corpus",), first="ascending"),
    Column("transfer", first="ascending"),
    Column("score", ("mean",), notes=("metric", "{several seeds} seeds", "other metrics"), first="descending"),
    replace(_DIFFERENCE, text=("difference",), notes=("({interval})", "verdict"), first="descending"),
    Column("pretraining tokens", first="ascending"),
    Column("pretraining time", first="ascending"),
    Column("parameters", first="ascending"),
    Column("trained parameters", notes=("share", "memory", "seconds"), first="ascending"),
    Column("pretraining FLOP", first="ascending"),
)


def results_table(rows: Sequence[Row]) -> Table:
    """Build the table of a report, by groups of comparable runs; show it with ``WIDE``, ``PAGE`` or ``NARROW``."""
    names = dict.fromkeys(row.group for row in rows)
    return Table("All results", WIDE, tuple(_group(name, [row for row in rows if row.group == name]) for name in names))


def leaderboard(entries: Sequence[Entry]) -> Table | None:
    """Rank all scored runs of tasks, task by task, best score first; None if there are none.

    Empty columns are left out.
    """
    scored = [entry for entry in entries if entry.score is not None and not entry.is_pretraining]
    if not scored:
        return None
    rows = [Row(entry, entry.name, entry.name, entry.other_metrics) for entry in sorted(scored, key=_position)]
    return Table("Leaderboard", _LEADERBOARD, (Group(tuple(map(_line, rows))),)).without_empty()


def _position(entry: Entry) -> tuple[str, str, float, float, str]:
    """Return the sort key of an entry: its group, then its score, best first."""
    assert entry.score is not None
    sign = -1.0 if higher_is_better(entry.metric or "", entry.run.result) else 1.0
    value = sign * entry.score.mean
    best = value if math.isfinite(value) else math.inf
    return (entry.task, entry.split, float(entry.num_train or "inf"), best, entry.name)


def _group(name: str, rows: Sequence[Row]) -> Group:
    metric = next((row.metric for row in rows if row.metric), "")
    return Group(tuple(map(_line, rows)), name, metric_heading(metric, of_pretraining=name == "pretraining"))


def _line(row: Row) -> Line:
    """Build the line with everything that a table shows of a run, a control or a baseline."""
    entry, score, metric, cost = row.entry, row.score, row.metric, row.entry.cost
    state, finished = entry.run.state, entry.run.state == "finished"
    several = score is not None and score.n > 1
    needed = needed_text(row.difference)
    to_baseline = difference_cells(entry.baseline_difference, metric)
    texts = {
        "run": row.run,
        "state": "" if finished else state,
        "state without score": state if score is None else "",
        "state of score": "" if finished or score is None else state,
        "reason": row.note if score is None else "",
        "warning": row.note if score is not None else "",
        "model": entry.model,
        "objective": entry.objective,
        "corpus": entry.corpus,
        "weights": " ".join(filter(None, (entry.model, entry.objective, entry.corpus))),
        "task": "" if row.group == "pretraining" else row.group,
        "transfer": row.transfer,
        "seeds": "" if score is None else str(score.n),
        "several seeds": str(score.n) if score is not None and several else "",
        "metric": metric_heading(metric, of_pretraining=row.group == "pretraining"),
        "median": format_metric(score.median, metric) if score is not None and several else "",
        "smallest detectable": detectable_text(row.difference, metric),
        "smallest detectable for now": detectable_text(row.difference, metric) if needed else "",
        "seeds needed": needed,
        "share": cost.share_text,
        "memory": cost.memory_text,
        "seconds": cost.seconds_text,
    }
    cells = {
        "mean": score_cell(score, metric),
        "other metrics": metrics_cell(row.other_metrics),
        **difference_cells(row.difference, metric),
        **{f"{name} to baseline": cell for name, cell in to_baseline.items()},
        "pretraining tokens": _number(entry.pretraining_tokens, count),
        "pretraining time": _number(entry.pretraining_seconds, duration),
        "parameters": _number(entry.num_parameters, count),
        "trained parameters": _number(cost.num_trained, count),
        "cost": Cell.of_lines(cost.in_full),
        "cost in short": Cell.of_lines(cost.in_short),
        "tokens/s": _number(entry.tokens_per_second, count),
        "pretraining FLOP": _number(_flop(entry), "{:.1e}".format),
    }
    if to_baseline:
        difference = to_baseline["difference"]
        cells["difference to baseline"] = replace(difference, text=f"{entry.better_baseline}: {difference.text}")
    kind = row.transfer if row.transfer in ("majority", "baseline", "control") else ""
    return Line({**{name: Cell(text) for name, text in texts.items()}, **cells}, kind)


def _flop(entry: Entry) -> float | None:
    return None if entry.source is None else number(entry.source.result.get("flops"))


def _number(value: float | None, text: Callable[[float], str]) -> Cell:
    return Cell() if value is None else Cell(text(value), sort=value)
