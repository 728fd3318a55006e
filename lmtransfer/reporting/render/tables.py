"""The report's table on the terminal, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmtransfer.reporting.render.rows import Row
from lmtransfer.reporting.render.units import count, duration, in_percent, shown, shown_difference
from lmtransfer.reporting.render.verdict_text import detectable_text, interval_text, needed_text, verdict_text
from lmtransfer.reporting.runs.sweeps import Sweep
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

if TYPE_CHECKING:
    from rich.table import Table

PLUS_MINUS = "\u00b1"

#: Heading of each column of the wide table (Markdown, HTML).
COLUMNS = (
    "run",
    "model",
    "objective",
    "corpus",
    "task",
    "transfer",
    "seeds",
    "metric",
    "mean",
    "median",
    "difference to control",
    "verdict",
    "would find",
    "seeds to settle",
    "pretraining",
    "parameters",
    "tokens/s",
)


def score_text(score: Spread | None, metric: str, *, plus_minus: str = PLUS_MINUS) -> str:
    """Mean and deviation in the metric's shown unit: ``69.6 +- 0.5``; without deviation for a single seed."""
    if score is None:
        return ""
    text = shown(score.mean, metric)
    return text if score.deviation is None else f"{text} {plus_minus} {shown(score.deviation, metric)}"


def difference_text(difference: Difference | None, metric: str) -> str:
    """A difference and the interval that decides: ``+2.8 (+1.2 to +4.4)``."""
    if difference is None:
        return ""
    text, interval = shown_difference(difference.delta, metric), interval_text(difference, metric)
    return f"{text} ({interval})" if interval else text


def metric_heading(metric: str, *, of_pretraining: bool = False) -> str:
    """The metric's name with its unit; losses of pretraining are those of the validation documents."""
    if of_pretraining:
        return f"validation {metric}"
    return f"{metric} (%)" if in_percent(metric) else metric


def cells(row: Row) -> list[str]:
    """A row as text, one cell a column of ``COLUMNS``."""
    budget = [] if row.pretraining_tokens is None else [f"{count(row.pretraining_tokens)} tokens"]
    budget += [] if row.pretraining_seconds is None else [duration(row.pretraining_seconds)]
    return [
        row.run if row.state == "finished" else f"{row.run} ({row.state})",
        row.model,
        row.objective,
        row.corpus,
        "" if row.group == "pretraining" else row.group,
        row.transfer,
        "" if row.score is None else str(row.score.n),
        metric_heading(row.metric, of_pretraining=row.group == "pretraining") if row.metric else "",
        score_text(row.score, row.metric) if row.score is not None else row.note,
        "" if row.score is None or row.score.n < 2 else shown(row.score.median, row.metric),
        difference_text(row.difference, row.metric),
        verdict_text(row.difference),
        detectable_text(row.difference, row.metric),
        needed_text(row.difference),
        ", ".join(budget),
        "" if row.num_parameters is None else count(row.num_parameters),
        "" if row.tokens_per_second is None else count(row.tokens_per_second),
    ]


def terminal_table(rows: Sequence[Row], *, plus_minus: str = PLUS_MINUS) -> Table:
    """The table for a terminal of 100 columns: two lines a run, one section a task.

    Args:
        rows: as from ``table_rows``.
        plus_minus: what stands between mean and deviation; ``+-`` where the terminal knows ASCII only.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold", min_width=18, max_width=36)
    table.add_column("transfer", min_width=9, max_width=10)
    table.add_column("mean", min_width=12, max_width=15)
    table.add_column("to control", min_width=14, max_width=16)
    table.add_column("pretraining", min_width=11, max_width=12)
    table.add_column("size, speed", min_width=10, max_width=12)
    group = None
    for row in rows:
        if row.group != group:
            if group is not None:
                table.add_section()
            group = row.group
            metric = next((other.metric for other in rows if other.group == group and other.metric), "")
            heading = "" if not metric else metric_heading(metric, of_pretraining=group == "pretraining")
            table.add_row(Text(group, style="bold"), "", Text(heading, style="bold"))
        score = row.score
        lines = [
            (row.run, list(filter(None, (" ".join(filter(None, (row.model, row.objective, row.corpus))), row.note)))),
            (row.transfer, [] if score is None or score.n == 1 else [f"{score.n} seeds"]),
            _score_lines(row, plus_minus),
            _difference_lines(row),
            _pair(row.pretraining_tokens, lambda value: f"{count(value)} tokens", row.pretraining_seconds, duration),
            _pair(row.num_parameters, count, row.tokens_per_second, lambda value: f"{count(value)} tok/s"),
        ]
        table.add_row(*(Text.assemble(first, *((f"\n{line}", "dim") for line in rest)) for first, rest in lines))
    return table


def _score_lines(row: Row, plus_minus: str) -> tuple[str, list[str]]:
    if row.score is None:
        return row.state, []
    lines = [] if row.score.n < 2 else [f"median {shown(row.score.median, row.metric)}"]
    lines += [] if row.state == "finished" else [row.state]
    return score_text(row.score, row.metric, plus_minus=plus_minus), lines


def _difference_lines(row: Row) -> tuple[str, list[str]]:
    if row.difference is None:
        return "", []
    difference, metric = row.difference, row.metric
    needed = needed_text(difference)
    lines = [interval_text(difference, metric), verdict_text(difference)]
    lines += [f"would find {detectable_text(difference, metric)}"] if needed else []
    lines += [f"to settle: {needed}"] if needed else []
    return shown_difference(difference.delta, metric), [line for line in lines if line]


def _pair(first: float | None, show_first: Any, second: float | None, show_second: Any) -> tuple[str, list[str]]:
    lines = [] if first is None else [show_first(first)]
    lines += [] if second is None else [show_second(second)]
    return (lines[0], lines[1:]) if lines else ("", [])


def markdown_table(rows: Sequence[Row]) -> str:
    """The wide table as Markdown; columns in which no row has anything are left out."""
    return _markdown(list(COLUMNS), [cells(row) for row in rows])


def sweep_headings(sweep: Sweep) -> list[str]:
    """The headings of a sweep's table: the swept keys, then what came out."""
    of_pretraining = sweep.points[0].entries[0].is_pretraining
    metric = metric_heading(sweep.metric, of_pretraining=of_pretraining) if sweep.metric else "metric"
    return [*sweep.keys, metric, "seeds", "difference to control", "verdict", "tokens/s", "run"]


def sweep_cells(sweep: Sweep, *, plus_minus: str = PLUS_MINUS) -> list[list[str]]:
    """The rows of a sweep's table as text, the best point marked with a star."""
    made = []
    for point in sweep.points:
        entry, metric = point.entries[0], sweep.metric or ""
        star = " *" if point is sweep.best and len(sweep.points) > 1 else ""
        made.append(
            [
                *(value_text(value) for value in point.values),
                score_text(point.score, metric, plus_minus=plus_minus) + star if point.score else entry.run.state,
                "" if point.score is None else str(point.score.n),
                difference_text(entry.difference, metric),
                verdict_text(entry.difference),
                "" if entry.tokens_per_second is None else count(entry.tokens_per_second),
                ", ".join(entry.run.name for entry in point.entries),
            ]
        )
    return made


def sweep_table(sweep: Sweep, *, plus_minus: str = PLUS_MINUS) -> Table:
    """A sweep's table for the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text(f"sweep {sweep.name}: {len(sweep.points)} points, * best", style="bold")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    headings, rows = without_empty(
        sweep_headings(sweep)[:-1], [row[:-1] for row in sweep_cells(sweep, plus_minus=plus_minus)]
    )
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def sweep_markdown(sweep: Sweep) -> str:
    """A sweep's table as Markdown."""
    return _markdown(sweep_headings(sweep), sweep_cells(sweep))


def value_text(value: Any) -> str:
    """A swept value: ``0.15``, ``1000`` rather than ``1000.0``."""
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def to_json(rows: Sequence[Row], sweeps: Sequence[Sweep], answer: str) -> str:
    """Everything in the tables as JSON, in plain units (fractions, tokens, seconds)."""
    points = [
        {
            "name": sweep.name,
            "keys": sweep.keys,
            "metric": sweep.metric,
            "points": [
                {
                    "values": dict(zip(sweep.keys, point.values, strict=True)),
                    "score": None if point.score is None else dataclasses.asdict(point.score),
                    "runs": [entry.run.key for entry in point.entries],
                }
                for point in sweep.points
            ],
        }
        for sweep in sweeps
    ]
    content = {"answer": answer, "rows": [_plain(row) for row in rows], "sweeps": points}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(row: Row) -> dict[str, Any]:
    """A row as plain values."""
    values = dataclasses.asdict(row)
    if row.difference is not None:
        found = row.difference.as_values()
        values["difference"] = {"delta": found.pop("difference"), **found}
    return values


def without_empty(headings: list[str], rows: Sequence[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Leave out the columns in which no row has anything."""
    kept = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    return [headings[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _markdown(headings: list[str], rows: Sequence[list[str]]) -> str:
    headings, rows = without_empty(headings, rows)
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines) + "\n"


def _markdown_cell(text: str) -> str:
    """Text that stays in its cell: no line breaks, and marks that Markdown would read are escaped."""
    return re.sub(r"([\\`|<>\[\]*_~])", r"\\\1", " ".join(text.split()))
