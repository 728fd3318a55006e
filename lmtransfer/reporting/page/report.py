"""The whole report as a single self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.page.run_answers import all_answers
from lmtransfer.reporting.page.run_details import run_details
from lmtransfer.reporting.page.texts import NoTexts, Texts
from lmtransfer.reporting.render.answer import answer, comparison
from lmtransfer.reporting.results import PAGE, leaderboard, results_table
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.reporting.runs.sweeps import Sweep, entries_outside
from lmtransfer.reporting.sections import Section
from lmtransfer.reporting.sweep_table import sweep_table


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure drawn by this process.

    Attributes:
        caption: what the figure shows; empty if the figure contains this text.
        svg: the SVG element, whose text matplotlib has escaped; the only value that a template does not escape.
    """

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section with its figure, read from a folder that may come from someone else.

    Attributes:
        title: the heading.
        sentence: what the figure shows.
        command: the command that drew the figure.
        source: the SVG as an image's ``data:`` address; a browser runs no script in such an image and loads nothing.
    """

    title: str
    sentence: str
    command: str
    source: str


def page_figure(figure: SavedFigure) -> PageFigure:
    """Read the SVG of a saved figure without its prolog, and add a label for screen readers."""
    svg = figure.svg.read_text(encoding="utf-8")
    start_tag = f'<svg role="img" aria-label="{escape(figure.title)}" '
    caption = "" if escape(figure.title, quote=False) in svg else figure.title
    return PageFigure(caption, svg[svg.index("<svg") :].replace("<svg ", start_tag, 1))


def page_section(section: Section) -> PageSection:
    """Read the figure of a section."""
    encoded = base64.b64encode(section.figure.svg.read_bytes()).decode()
    return PageSection(section.title, section.sentence, section.command, f"data:image/svg+xml;base64,{encoded}")


def html_report(
    entries: Sequence[Entry],
    sweeps: Sequence[Sweep],
    figures: Sequence[SavedFigure],
    *,
    title: str,
    sections: Sequence[Section] = (),
    texts: Texts | None = None,
) -> str:
    """Render the page: the answer, then the leaderboard, tables, figures, and the runs' answers and details.

    Args:
        entries: all runs of the report.
        sweeps: the sweeps of the report, whose points are in tables of their own but not in the main table.
        figures: saved figures, in page order.
        sections: parts that directly follow the answer.
        texts: finds the texts of examples; None to show no texts.

    Raises:
        OSError: the file of a figure cannot be read.
    """
    entries_with_control = [entry for entry in entries if entry.difference is not None]
    rows = table_rows(entries_outside(entries, sweeps))
    answers, num_more = all_answers(entries, NoTexts() if texts is None else texts)
    return document(
        "report.html.j2",
        title=title,
        with_script=True,
        answer=answer(entries),
        comparisons=list(map(comparison, entries_with_control)) if len(entries_with_control) > 1 else [],
        sections=list(map(page_section, sections)),
        leaderboard=leaderboard(entries),
        results=results_table(rows).select(PAGE).without_empty() if rows else None,
        sweeps=list(map(sweep_table, sweeps)),
        figures=list(map(page_figure, figures)),
        answers=answers,
        num_more=num_more,
        runs=list(map(run_details, entries)),
    )
