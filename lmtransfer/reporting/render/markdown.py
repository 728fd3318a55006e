"""The report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.render.answer import answer
from lmtransfer.reporting.render.cells import COLUMNS, cells, sweep_cells, sweep_headings, without_empty
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import Row, table_rows
from lmtransfer.reporting.runs.sweeps import Sweep, outside


def markdown_report(
    entries: Sequence[Entry], sweeps: Sequence[Sweep], figures: Sequence[SavedFigure], *, title: str
) -> str:
    """The report as Markdown, with links to the figure files."""
    rows = table_rows(outside(entries, sweeps))
    parts = [f"# {title}", answer(entries)]
    if rows:
        parts.append(markdown_table(rows).rstrip())
    for sweep in sweeps:
        parts.append(f"## Sweep `{sweep.name}`\n\n{sweep_markdown(sweep).rstrip()}\n\n\\* the best point")
    parts.extend(f"![{figure.title}](figures/{figure.png.name})" for figure in figures)
    return "\n\n".join(parts) + "\n"


def markdown_table(rows: Sequence[Row]) -> str:
    """The wide table as Markdown, without the columns that are empty in all rows."""
    return _markdown(list(COLUMNS), [cells(row) for row in rows])


def sweep_markdown(sweep: Sweep) -> str:
    """The table of a sweep as Markdown."""
    return _markdown(sweep_headings(sweep), sweep_cells(sweep))


def _markdown(headings: list[str], rows: Sequence[list[str]]) -> str:
    headings, rows = without_empty(headings, rows)
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines) + "\n"


def _markdown_cell(text: str) -> str:
    """Text of a cell: without line breaks, and with Markdown characters escaped."""
    return re.sub(r"([\\`|<>\[\]*_~])", r"\\\1", " ".join(text.split()))
