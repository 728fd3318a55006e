"""The whole report as a single self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import yaml

from lmtransfer.reporting.answer import answer, comparison
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


@dataclass(frozen=True, slots=True)
class RunDetails:
    """The details of one run.

    Attributes:
        rule: the run's key, and how the checkpoint and the learning rate were chosen.
    """

    command: str
    name: str
    facts: str
    problems: tuple[str, ...]
    rule: str
    languages: str
    calibration: str
    layer_weights: str
    files: tuple[tuple[str, str], ...]


def run_details(entry: Entry) -> RunDetails:
    """Collect the details of an entry's run."""
    run = entry.run
    facts: list[str] = [run.state]
    tokens, seconds = read_total(run, "tokens"), read_total(run, "seconds")
    facts += [] if tokens is None else [f"{count(tokens)} tokens"]
    facts += [] if seconds is None else [duration(seconds)]
    facts += [] if entry.num_parameters is None else [f"{count(entry.num_parameters)} parameters"]
    facts += [f"{len(entry.seeds)} seeds"] if entry.seeds else []
    versions = next((part.versions for part in (run, *entry.seeds) if part.versions), {})
    files = (("Configuration", _yaml(run.config)), ("Versions", _yaml(versions)))
    return RunDetails(
        command=run.command,
        name=entry.name,
        facts=", ".join(facts),
        problems=tuple(problem for part in (run, *entry.seeds, *entry.controls) for problem in part.problems),
        rule=": ".join(filter(None, (run.key, run.result.get("chosen_by")))),
        languages=languages_text(run.result),
        calibration=calibration_text(run.result),
        layer_weights=layer_weights_text(run.result, plus_minus=PLUS_MINUS),
        files=tuple((heading, text) for heading, text in files if text),
    )


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110) if content else ""


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
        sections=list(map(page_section, sections)),
        leaderboard=leaderboard(entries),
        results=results_table(rows).select(PAGE).without_empty() if rows else None,
        sweeps=list(map(sweep_table, sweeps)),
        figures=list(map(page_figure, figures)),
        answers=answers,
        num_more=num_more,
        runs=list(map(run_details, entries)),
    )
