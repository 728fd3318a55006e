"""The whole report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.page.figure import shown_figure, shown_section
from lmtransfer.reporting.page.leaderboard import leaderboard
from lmtransfer.reporting.page.results import results_table, sweep_table
from lmtransfer.reporting.page.run_answers import all_answers
from lmtransfer.reporting.page.run_details import run_details
from lmtransfer.reporting.page.texts import NoTexts, Texts
from lmtransfer.reporting.render.answer import answer, comparison
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.reporting.runs.sweeps import Sweep, outside
from lmtransfer.reporting.sections import Section


def html_report(
    entries: Sequence[Entry],
    sweeps: Sequence[Sweep],
    figures: Sequence[SavedFigure],
    *,
    title: str,
    sections: Sequence[Section] = (),
    texts: Texts | None = None,
) -> str:
    """The page: the answer first, then the leaderboard, tables, figures, the answers of the runs, and their details.

    Args:
        entries: all runs of the report.
        sweeps: the sweeps of the report; their points are in the tables of the sweeps and not in the main table.
        figures: saved figures, put into the page in this order.
        title: heading of the page.
        sections: parts that come right after the answer.
        texts: finds the texts of examples; None: no texts are shown.

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
        results=results_table(rows) if rows else None,
        sweeps=[(sweep.name, sweep_table(sweep)) for sweep in sweeps],
        figures=list(map(shown_figure, figures)),
        answers=answers,
        num_more=num_more,
        runs=list(map(run_details, entries)),
    )
