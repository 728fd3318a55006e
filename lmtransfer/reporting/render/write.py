"""Writing a report: one folder with HTML, Markdown, JSON and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.figures.all_figures import draw_figures
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.render.answer import answer
from lmtransfer.reporting.render.html import html_report
from lmtransfer.reporting.render.rows import table_rows
from lmtransfer.reporting.render.tables import markdown_table, sweep_markdown, to_json
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.sweeps import Sweep, outside
from lmtransfer.system.durable import made, write_text


def write_report(
    entries: Sequence[Entry], sweeps: Sequence[Sweep], folder: Path, *, title: str, figures: bool = True
) -> list[SavedFigure]:
    """Write ``report.html``, ``report.md``, ``report.json`` and ``figures/``, over those of an earlier report.

    Args:
        entries: all runs.
        sweeps: the sweeps among them.
        folder: where to; made if need be.
        title: heading of the pages.
        figures: whether to draw any.

    Returns:
        The figures, in the order of the page.

    Raises:
        RunDirectoryError: the folder cannot be written.
    """
    try:
        with made(folder):
            drawn = draw_figures(entries, sweeps, folder / "figures") if figures else []
            pages = {
                "report.html": html_report(entries, sweeps, drawn, title=title),
                "report.md": markdown_report(entries, sweeps, drawn, title=title),
                "report.json": to_json(table_rows(entries), sweeps, answer(entries)),
            }
            for name, text in pages.items():
                write_text(folder / name, text)
    except OSError as error:
        raise RunDirectoryError(
            f"to={folder}: the report cannot be written ({error.strerror or error}); give another folder with to="
        ) from error
    return drawn


def markdown_report(
    entries: Sequence[Entry], sweeps: Sequence[Sweep], figures: Sequence[SavedFigure], *, title: str
) -> str:
    """The report as Markdown, with links to the figures beside it."""
    rows = table_rows(outside(entries, sweeps))
    parts = [f"# {title}", answer(entries)]
    if rows:
        parts.append(markdown_table(rows).rstrip())
    for sweep in sweeps:
        parts.append(f"## Sweep `{sweep.name}`\n\n{sweep_markdown(sweep).rstrip()}\n\n\\* the best point")
    parts.extend(f"![{figure.title}](figures/{figure.png.name})" for figure in figures)
    return "\n\n".join(parts) + "\n"
