"""Renders a report as one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from lmtransfer.reporting.answer import answer, comparison
from lmtransfer.reporting.beyond_chance import chance_table
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.page.run_answers import all_answers
from lmtransfer.reporting.page.wrong_answers import NoTexts, Texts
from lmtransfer.reporting.results import PAGE, leaderboard, results_table, sweep_table, table_rows
from lmtransfer.reporting.runs.details import calibration_text, languages_text, layer_weights_text
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.lineage import read_total
from lmtransfer.reporting.runs.sweeps import Sweep, entries_outside
from lmtransfer.reporting.sections import Section
from lmtransfer.reporting.table import PLUS_MINUS
from lmtransfer.system.printable import count, duration


def html_report(
    entries: Sequence[Entry],
    sweeps: Sequence[Sweep],
    figures: Sequence[SavedFigure],
    *,
    title: str,
    sections: Sequence[Section] = (),
    texts: Texts | None = None,
) -> str:
    """Render the page: the answer, the leaderboard, tables, figures, and each run's predictions and details.

    Args:
        texts: finds the texts of examples; None to show no texts.
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
        sections=list(map(_section, sections)),
        leaderboard=leaderboard(entries),
        results=results_table(rows).select(PAGE).without_empty() if rows else None,
        chances=chance_table(entries),
        sweeps=list(map(sweep_table, sweeps)),
        figures=list(map(_figure, figures)),
        answers=answers,
        num_more=num_more,
        runs=list(map(_run, entries)),
    )


def _run(entry: Entry) -> dict[str, Any]:
    run = entry.run
    facts: list[str] = [run.state]
    tokens, seconds = read_total(run, "tokens"), read_total(run, "seconds")
    facts += [] if tokens is None else [f"{count(tokens)} tokens"]
    facts += [] if seconds is None else [duration(seconds)]
    facts += [] if entry.num_parameters is None else [f"{count(entry.num_parameters)} parameters"]
    facts += [f"{len(entry.seeds)} seeds"] if entry.seeds else []
    versions = next((part.versions for part in (run, *entry.seeds) if part.versions), {})
    texts = (
        languages_text(run.result),
        calibration_text(run.result),
        layer_weights_text(run.result, plus_minus=PLUS_MINUS),
    )
    return {
        "command": run.command,
        "name": entry.name,
        "facts": ", ".join(facts),
        "problems": [problem for part in (run, *entry.seeds, *entry.controls) for problem in part.problems],
        "rule": ": ".join(filter(None, (run.key, run.result.get("chosen_by")))),
        "texts": [text for text in texts if text],
        "files": [
            (heading, _yaml(file)) for heading, file in (("Configuration", run.config), ("Versions", versions)) if file
        ],
    }


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110)


def _figure(figure: SavedFigure) -> dict[str, str]:
    """Read the SVG of a figure that this process has drawn, and label the SVG for screen readers.

    The SVG is the only value that a template does not escape, because matplotlib has escaped its text. The caption is
    empty if the figure already contains this text.
    """
    svg = figure.svg.read_text(encoding="utf-8")
    start_tag = f'<svg role="img" aria-label="{escape(figure.title)}" '
    caption = "" if escape(figure.title, quote=False) in svg else figure.title
    return {"caption": caption, "svg": svg[svg.index("<svg") :].replace("<svg ", start_tag, 1)}


def _section(section: Section) -> dict[str, str]:
    """Read a section, which someone else may have written.

    The figure becomes the ``data:`` URL of an image, in which a browser runs no script and loads nothing.
    """
    source = f"data:image/svg+xml;base64,{base64.b64encode(section.svg.read_bytes()).decode()}"
    return {"title": section.title, "sentence": section.sentence, "command": section.command, "source": source}
