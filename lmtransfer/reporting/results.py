"""The table of all runs, with three selections of columns, and the leaderboard over the same cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from lmtransfer.reporting.render.cells import difference_cells, metric_heading, metrics_cell, score_cell
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import ReportRow
from lmtransfer.reporting.runs.scores import higher_is_better, number
from lmtransfer.reporting.table import Cell, Group, Line, ReportTable, TableColumn
from lmtransfer.reporting.verdict_text import detectable_text, needed_text
from lmtransfer.system.printable import count, duration, format_metric

_DIFFERENCE = TableColumn("difference from control", ("difference", "({interval})"))

#: Columns for Markdown and LaTeX: one line per run.
WIDE = (
    TableColumn("run", ("run", "({state})")),
    TableColumn("model"),
    TableColumn("objective"),
    TableColumn("corpus"),
    TableColumn("task"),
    TableColumn("transfer"),
    TableColumn("seeds"),
    TableColumn("metric"),
    TableColumn("mean", ("mean", "reason")),
    TableColumn("median"),
    TableColumn("other metrics", separator=", "),
    _DIFFERENCE,
    TableColumn("verdict"),
    TableColumn("difference from baseline", ("difference from baseline", "({interval to baseline})")),
    TableColumn("verdict against baseline", ("verdict to baseline",)),
    TableColumn("smallest detectable"),
    TableColumn("seeds needed"),
    TableColumn("pretraining", ("{pretraining tokens} tokens", "pretraining time"), separator=", "),
    TableColumn("parameters"),
    TableColumn("cost", separator=", "),
    TableColumn("tokens/s"),
)
#: Columns for the page: under group headings, with the pretraining below the name of the run.
PAGE = (
    replace(WIDE[0], notes=("weights",), problem="warning"),
    *(column for column in WIDE[1:] if column.heading not in ("model", "objective", "corpus", "task", "metric")),
)
#: Columns for a terminal 100 characters wide: a few lines of text per run.
NARROW = (
    TableColumn("run", notes=("weights", "reason", "warning"), width=(18, 36)),
    TableColumn("transfer", notes=("{several seeds} seeds",), width=(9, 10)),
    TableColumn(
        "mean",
        ("mean", "state without score"),
        notes=("median {median}", "other metrics", "state of score"),
        width=(12, 15),
        has_unit=True,
    ),
    TableColumn(
        "difference from control",
        ("difference",),
        notes=("interval", "verdict", "detectable: {smallest detectable for now}", "seeds needed: {seeds needed}")
        + ("from {difference from baseline}", "interval to baseline", "verdict to baseline"),
        width=(14, 16),
    ),
    TableColumn("pretraining", ("{pretraining tokens} tokens",), notes=("pretraining time",), width=(11, 12)),
    TableColumn("size, cost", ("parameters",), notes=("{tokens/s} tok/s", "cost in short"), width=(10, 14)),
)
_LEADERBOARD = (
    TableColumn("task", first="ascending"),
    TableColumn("run", problem="state", first="ascending"),
    TableColumn("model", first="ascending"),
    TableColumn("objective", notes=("corpus",), first="ascending"),
    TableColumn("transfer", first="ascending"),
    TableColumn("score", ("mean",), notes=("metric", "{several seeds} seeds", "other metrics"), first="descending"),
    replace(_DIFFERENCE, text=("difference",), notes=("({interval})", "verdict"), first="descending"),
    TableColumn("pretraining tokens", first="ascending"),
    TableColumn("pretraining time", first="ascending"),
    TableColumn("parameters", first="ascending"),
    TableColumn("trained parameters", notes=("share", "memory", "seconds"), first="ascending"),
    TableColumn("pretraining FLOP", first="ascending"),
)


def results_table(rows: Sequence[ReportRow]) -> ReportTable:
    """Build the table of a report by groups of comparable runs; ``WIDE``, ``PAGE`` and ``NARROW`` select columns."""
    names = dict.fromkeys(row.group for row in rows)
    return ReportTable(
        "All results", WIDE, tuple(_group(name, [row for row in rows if row.group == name]) for name in names)
    )


def leaderboard(entries: Sequence[Entry]) -> ReportTable | None:
    """Rank all scored runs of tasks, task by task, best score first; return None if there are no such runs.

    Empty columns are left out.
    """
    scored = [entry for entry in entries if entry.score is not None and not entry.is_pretraining]
    if not scored:
        return None
    rows = [ReportRow(entry, entry.name, entry.name, entry.other_metrics) for entry in sorted(scored, key=_position)]
    return ReportTable("Leaderboard", _LEADERBOARD, (Group(tuple(map(_line, rows))),)).without_empty()


def _position(entry: Entry) -> tuple[str, str, float, float, str]:
    """Return the sort key of an entry: its group, then its score, best first."""
    assert entry.score is not None
    sign = -1.0 if higher_is_better(entry.metric or "", entry.run.result) else 1.0
    value = sign * entry.score.mean
    best = value if math.isfinite(value) else math.inf
    return (entry.task, entry.split, float(entry.num_train or "inf"), best, entry.name)


def _group(name: str, rows: Sequence[ReportRow]) -> Group:
    metric = next((row.metric for row in rows if row.metric), "")
    return Group(tuple(map(_line, rows)), name, metric_heading(metric, of_pretraining=name == "pretraining"))


def _line(row: ReportRow) -> Line:
    """Build the line of a run, a control or a baseline, with the cells for all columns."""
    entry, score, metric, cost = row.entry, row.score, row.metric, row.entry.cost
    state, is_finished = entry.run.state, entry.run.state == "finished"
    has_several_seeds = score is not None and score.n > 1
    seeds_needed = needed_text(row.difference)
    to_baseline = difference_cells(entry.baseline_difference, metric)
    texts = {
        "run": row.run,
        "state": "" if is_finished else state,
        "state without score": state if score is None else "",
        "state of score": "" if is_finished or score is None else state,
        "reason": row.note if score is None else "",
        "warning": row.note if score is not None else "",
        "model": entry.model,
        "objective": entry.objective,
        "corpus": entry.corpus,
        "weights": " ".join(filter(None, (entry.model, entry.objective, entry.corpus))),
        "task": "" if row.group == "pretraining" else row.group,
        "transfer": row.transfer,
        "seeds": "" if score is None else str(score.n),
        "several seeds": str(score.n) if score is not None and has_several_seeds else "",
        "metric": metric_heading(metric, of_pretraining=row.group == "pretraining"),
        "median": format_metric(score.median, metric) if score is not None and has_several_seeds else "",
        "smallest detectable": detectable_text(row.difference, metric),
        "smallest detectable for now": detectable_text(row.difference, metric) if seeds_needed else "",
        "seeds needed": seeds_needed,
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
        cells["difference from baseline"] = replace(difference, text=f"{entry.better_baseline}: {difference.text}")
    kind = row.transfer if row.transfer in ("majority", "baseline", "control") else ""
    return Line({**{name: Cell(text) for name, text in texts.items()}, **cells}, kind)


def _flop(entry: Entry) -> float | None:
    return None if entry.source is None else number(entry.source.result.get("flops"))


def _number(value: float | None, text: Callable[[float], str]) -> Cell:
    return Cell() if value is None else Cell(text(value), sort=value)
