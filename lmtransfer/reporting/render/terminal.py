"""The report on the terminal: the answer, the table, the tables of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmtransfer.reporting.render.answer import answer
from lmtransfer.reporting.render.cells import (
    PLUS_MINUS,
    failed_cells,
    metric_heading,
    other_metrics_texts,
    score_text,
    sweep_cells,
    sweep_headings,
    without_empty,
)
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import Row, table_rows
from lmtransfer.reporting.runs.sweeps import Sweep, outside
from lmtransfer.reporting.verdict_text import detectable_text, interval_text, needed_text, verdict_text
from lmtransfer.system.units import count, duration, shown, shown_difference

if TYPE_CHECKING:
    from rich.table import Table

    from lmtransfer.system.console import Console

#: The width if the output is not a terminal, such as a log.
_WIDTH = 100


def report_console() -> Console:
    """A console on standard output, with the width and colours of the terminal."""
    from lmtransfer.system.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def print_report(entries: Sequence[Entry], sweeps: Sequence[Sweep], console: Console) -> None:
    """Print the answer, the table of runs outside of sweeps, and a table for each sweep."""
    sign = plus_minus(console)
    rows = table_rows(outside(entries, sweeps))
    console.print(answer(entries), style="bold", markup=False)
    if rows:
        console.print(terminal_table(rows, plus_minus=sign))
    for sweep in sweeps:
        console.print(sweep_table(sweep, plus_minus=sign))


def plus_minus(console: Console) -> str:
    """The plus-minus sign in a form that the console can show."""
    try:
        PLUS_MINUS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return "+-"
    return PLUS_MINUS


def terminal_table(rows: Sequence[Row], *, plus_minus: str = PLUS_MINUS) -> Table:
    """The table for a terminal of 100 columns: two lines for each run, one section for each task.

    Args:
        rows: the rows from ``table_rows``.
        plus_minus: the sign between mean and deviation; ``+-`` if the terminal has only ASCII.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold", min_width=18, max_width=36)
    table.add_column("transfer", min_width=9, max_width=10)
    table.add_column("mean", min_width=12, max_width=15)
    table.add_column("difference to control", min_width=14, max_width=16)
    table.add_column("pretraining", min_width=11, max_width=12)
    table.add_column("size, cost", min_width=10, max_width=14)
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
            _size_lines(row),
        ]
        table.add_row(*(Text.assemble(first, *((f"\n{line}", "dim") for line in rest)) for first, rest in lines))
    return table


def _score_lines(row: Row, plus_minus: str) -> tuple[str, list[str]]:
    if row.score is None:
        return row.state, []
    lines = [] if row.score.n < 2 else [f"median {shown(row.score.median, row.metric)}"]
    lines += other_metrics_texts(row.other_metrics, plus_minus=plus_minus)
    lines += [] if row.state == "finished" else [row.state]
    return score_text(row.score, row.metric, plus_minus=plus_minus), lines


def _difference_lines(row: Row) -> tuple[str, list[str]]:
    if row.difference is None:
        first, *rest = [*_baseline_lines(row), ""]
        return first, [line for line in rest if line]
    difference, metric = row.difference, row.metric
    needed = needed_text(difference)
    lines = [interval_text(difference, metric), verdict_text(difference, metric)]
    lines += [f"detectable: {detectable_text(difference, metric)}"] if needed else []
    lines += [f"seeds needed: {needed}"] if needed else []
    return shown_difference(difference.delta, metric), [*(line for line in lines if line), *_baseline_lines(row)]


def _baseline_lines(row: Row) -> list[str]:
    if row.baseline_difference is None:
        return []
    found, metric = row.baseline_difference, row.metric
    lines = [f"to {row.better_baseline}: {shown_difference(found.delta, metric)}", interval_text(found, metric)]
    return [line for line in (*lines, verdict_text(found, metric)) if line]


def _size_lines(row: Row) -> tuple[str, list[str]]:
    first, rest = _pair(row.num_parameters, count, row.tokens_per_second, lambda value: f"{count(value)} tok/s")
    return first, [*rest, *row.cost.in_short]


def _pair(first: float | None, show_first: Any, second: float | None, show_second: Any) -> tuple[str, list[str]]:
    lines = [] if first is None else [show_first(first)]
    lines += [] if second is None else [show_second(second)]
    return (lines[0], lines[1:]) if lines else ("", [])


def sweep_table(sweep: Sweep, *, failed: Sequence[str] = (), plus_minus: str = PLUS_MINUS) -> Table:
    """The table of a sweep for the terminal.

    Args:
        sweep: the sweep.
        failed: labels of points without a run, such as ``train.steps=5,seed=1``; their rows are last.
        plus_minus: the sign between mean and deviation.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text(f"sweep {sweep.name}: {len(sweep.points)} points, * marks the best", style="bold")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [*sweep_cells(sweep, plus_minus=plus_minus), *(failed_cells(sweep, label) for label in failed)]
    headings, rows = without_empty(sweep_headings(sweep)[:-1], [row[:-1] for row in cells])
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
