"""The whole report as one self-contained HTML file."""

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
from lmtransfer.reporting.runs.sweeps import Sweep, outside
from lmtransfer.reporting.sections import Section
from lmtransfer.reporting.sweep_table import sweep_table


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """A figure drawn by this process.

    Attributes:
        caption: what it shows; empty if the figure itself says so.
        svg: the SVG element, whose text matplotlib has escaped; the only value that a template does not escape.
    """

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section with its figure, read from a folder that may come from someone else.

    Attributes:
        title: its heading.
        sentence: what the figure shows.
        command: the command that drew it.
        source: the SVG as a ``data:`` address of an image, in which a browser runs and loads nothing.
    """

    title: str
    sentence: str
    command: str
    source: str


def shown_figure(figure: SavedFigure) -> ShownFigure:
    """Read the SVG of a saved figure, without its prolog, and name it for screen readers."""
    svg = figure.svg.read_text(encoding="utf-8")
    named = f'<svg role="img" aria-label="{escape(figure.title)}" '
    caption = "" if escape(figure.title, quote=False) in svg else figure.title
    return ShownFigure(caption, svg[svg.index("<svg") :].replace("<svg ", named, 1))


def shown_section(section: Section) -> ShownSection:
    """Read the figure of a section."""
    encoded = base64.b64encode(section.figure.svg.read_bytes()).decode()
    return ShownSection(section.title, section.sentence, section.command, f"data:image/svg+xml;base64,{encoded}")


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
    compared = [entry for entry in entries if entry.difference is not None]
    rows = table_rows(outside(entries, sweeps))
    answers, num_more = all_answers(entries, NoTexts() if texts is None else texts)
    return document(
        "report.html.j2",
        title=title,
        with_script=True,
        answer=answer(entries),
        comparisons=[comparison(entry) for entry in compared] if len(compared) > 1 else [],
        sections=list(map(shown_section, sections)),
        leaderboard=leaderboard(entries),
        results=results_table(rows).select(PAGE).without_empty() if rows else None,
        sweeps=list(map(sweep_table, sweeps)),
        figures=list(map(shown_figure, figures)),
        answers=answers,
        num_more=num_more,
        runs=list(map(run_details, entries)),
    )
