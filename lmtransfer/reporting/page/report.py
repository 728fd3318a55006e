"""Renders a report as one self-contained HTML file, which includes the sections that studies have written."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import TypedDict

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.answer import answer, clearest_comparison, comparison
from lmtransfer.reporting.beyond_chance import chance_table
from lmtransfer.reporting.figures.scores import COMPARISON, comparison_name
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.page.run_answers import all_answers
from lmtransfer.reporting.page.wrong_answers import NoTexts, Texts
from lmtransfer.reporting.result_tables import PAGE, results_table, sweep_table, table_rows
from lmtransfer.reporting.runs.details import calibration_text, languages_text, layer_weights_text
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.lineage import read_total
from lmtransfer.reporting.runs.sweeps import Sweep, entries_outside
from lmtransfer.reporting.table import PLUS_MINUS
from lmtransfer.system.durable import write_text
from lmtransfer.system.printable import count, duration, printable
from lmtransfer.system.safe_files import read_json

#: The file in a study's folder that lists the study's sections.
_SECTIONS_FILE = "sections.json"
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _SavedSection(TypedDict):
    title: str
    sentence: str
    command: str
    figure: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section that a study adds to the report: a question with its answer.

    Attributes:
        sentence: the finding in the figure, and whether it is beyond chance.
        svg: the figure; a PNG of the same name is next to it.
    """

    title: str
    sentence: str
    command: str
    svg: Path


def write_sections(sections: Sequence[Section], folder: Path) -> None:
    """Write the sections to ``sections.json``; the figures are in the folder ``figures`` next to this file."""
    content = [
        {
            "title": section.title,
            "sentence": section.sentence,
            "command": section.command,
            "figure": section.svg.stem,
        }
        for section in sections
    ]
    write_text(folder / _SECTIONS_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def find_sections(roots: Sequence[Path]) -> list[Section]:
    """Find the sections of the studies in some folders, in path order.

    Unreadable files are skipped. The report then lacks a figure, which the study's command can draw again.
    """
    patterns = (_SECTIONS_FILE, f"*/{_SECTIONS_FILE}", f"*/*/{_SECTIONS_FILE}")
    sections = []
    for path in sorted({path for root in roots for pattern in patterns for path in root.resolve().glob(pattern)}):
        try:
            saved_sections = read_json(path, list[_SavedSection], error=RunDirectoryError)
        except RunDirectoryError:
            continue
        for saved in saved_sections:
            svg = path.parent / "figures" / f"{Path(saved['figure']).name}.svg"
            if svg.is_file():
                sections.append(Section(saved["title"], saved["sentence"], saved["command"], svg))
    return sections


def html_report(
    entries: Sequence[Entry],
    sweeps: Sequence[Sweep],
    figures: Sequence[SavedFigure],
    *,
    title: str,
    sections: Sequence[Section] = (),
    texts: Texts | None = None,
) -> str:
    """Render the page: the answer and its figure, tables, figures, and each run's predictions and details.

    Args:
        texts: finds the texts of examples; None to show no texts.
    """
    entries_with_control = [entry for entry in entries if entry.difference is not None]
    rows = table_rows(entries_outside(entries, sweeps))
    lead = _lead(entries, figures)
    answers, num_more = all_answers(entries, NoTexts() if texts is None else texts)
    return document(
        "report.html.j2",
        title=title,
        with_script=True,
        answer=answer(entries),
        comparisons=list(map(comparison, entries_with_control)) if len(entries_with_control) > 1 else [],
        sections=list(map(_section, sections)),
        results=results_table(rows).select(PAGE).without_empty() if rows else None,
        chances=chance_table(entries),
        sweeps=list(map(sweep_table, sweeps)),
        lead=list(map(_figure, lead)),
        figures=[_figure(figure) for figure in figures if figure not in lead],
        answers=answers,
        num_more=num_more,
        runs=list(map(_run, entries)),
    )


def _lead(entries: Sequence[Entry], figures: Sequence[SavedFigure]) -> list[SavedFigure]:
    """Return the figure of the clearest comparison, or else the first that compares runs; empty if there is none."""
    clearest, drawn = clearest_comparison(entries), {figure.name: figure for figure in figures}
    names = [] if clearest is None else [comparison_name(clearest.group, clearest.metric or "")]
    names += [name for name in drawn if name.startswith(COMPARISON)]
    return [drawn[name] for name in names if name in drawn][:1]


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
        "texts": [*filter(None, texts), *(printable(finding["text"]) for finding in run.result.get("findings", ()))],
        "files": [
            (heading, _yaml(file)) for heading, file in (("Configuration", run.config), ("Versions", versions)) if file
        ],
    }


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


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
