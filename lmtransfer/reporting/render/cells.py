"""Scores and differences as text and as cells, for the tables of all commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lmtransfer.reporting.table import PLUS_MINUS, Cell, ReportTable, mark_of
from lmtransfer.reporting.verdict_text import interval_text, verdict_text
from lmtransfer.system.printable import format_difference, format_metric, in_percent
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from lmtransfer.system.console import Console


def metric_heading(metric: str, *, of_pretraining: bool = False) -> str:
    """Return the metric's name with its unit; pretraining losses are named as validation losses."""
    if of_pretraining and metric:
        return f"validation {metric}"
    return f"{metric} (%)" if in_percent(metric) else metric


def score_text(score: Spread | None, metric: str) -> str:
    """Format mean and deviation in the metric's displayed unit: ``69.6 +- 0.5``; no deviation for a single seed."""
    if score is None:
        return ""
    text = format_metric(score.mean, metric)
    return text if score.deviation is None else f"{text} {PLUS_MINUS} {format_metric(score.deviation, metric)}"


def difference_text(difference: Difference | None, metric: str) -> str:
    """Format a difference with its corrected interval: ``+2.8 (+1.2 to +4.4)``."""
    if difference is None:
        return ""
    text, interval = format_difference(difference.delta, metric), interval_text(difference, metric)
    return f"{text} ({interval})" if interval else text


def score_cell(score: Spread | None, metric: str) -> Cell:
    """Build the cell of a score."""
    return Cell(score_text(score, metric), sort=None if score is None else score.mean)


def metrics_cell(scores: Mapping[str, Spread]) -> Cell:
    """Build the cell of the other metrics, one line each with its unit: ``macro_f1 (%) 69.6 +- 0.5``."""
    return Cell.of_lines([f"{metric_heading(metric)} {score_text(score, metric)}" for metric, score in scores.items()])


def difference_cells(difference: Difference | None, metric: str) -> dict[str, Cell]:
    """Build the cells of a difference, its corrected interval, and its verdict with its mark."""
    if difference is None:
        return {}
    return {
        "difference": Cell(format_difference(difference.delta, metric), sort=difference.delta),
        "interval": Cell(interval_text(difference, metric)),
        "verdict": Cell(verdict_text(difference, metric), mark=mark_of(difference)),
    }


def markdown_table(table: ReportTable) -> str:
    """Render a table with one line of text per row."""
    lines = [[_escape(text) for text in row] for row in (table.headings, *table.rows)]
    lines.insert(1, ["---"] * len(table.columns))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _escape(text: str) -> str:
    """Put the text on one line and escape Markdown's special characters."""
    return re.sub(r"([\\`|<>\[\]*_~])", r"\\\1", " ".join(text.split()))


#: The width if the output is not a terminal but, for example, a log.
_WIDTH = 100


def report_console() -> Console:
    """Create a console on standard output, with the width and colors of the terminal."""
    from lmtransfer.system.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def print_table(table: ReportTable, console: Console) -> None:
    """Print a table; an ASCII-only terminal shows ``+-`` between mean and deviation."""
    try:
        PLUS_MINUS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        console.print(terminal_table(table, plus_minus="+-"))
    else:
        console.print(terminal_table(table))


def terminal_table(table: ReportTable, *, plus_minus: str = PLUS_MINUS) -> RichTable:
    """Render a table: the first line of each cell unchanged, the others dim below it, with empty lines between groups.

    Args:
        plus_minus: the sign between mean and deviation.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    def text(content: str, style: str = "") -> Text:
        return Text(content.replace(PLUS_MINUS, plus_minus), style=style)

    rich_table = RichTable(
        title=text(table.title, "bold") if table.title else None,
        title_justify="left",
        caption=text(table.note, "table.caption") if table.note else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in table.columns:
        smallest, largest = column.width
        rich_table.add_column(text(column.heading), overflow="fold", min_width=smallest, max_width=largest)
    for group in table.groups:
        rich_table.add_section()
        if group.title:
            titles = [group.note if column.has_unit else "" for column in table.columns]
            rich_table.add_row(*(text(title, "bold") for title in (group.title, *titles[1:])))
        for line in group.lines:
            cells = []
            for column in table.columns:
                first, *rest = column.cell(line).lines or [""]
                cell = text(first, "bold" if column.is_bold else "")
                cells.append(Text.assemble(cell, *(text(f"\n{note}", "dim") for note in rest)))
            rich_table.add_row(*cells)
    return rich_table
