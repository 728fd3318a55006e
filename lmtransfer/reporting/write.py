"""Prints a report, or writes it to a folder as HTML, Markdown and JSON with figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.answer import answer
from lmtransfer.reporting.beyond_chance import chance_table
from lmtransfer.reporting.figures.scores import draw_figures
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.page.report import Section, html_report
from lmtransfer.reporting.page.wrong_answers import Texts
from lmtransfer.reporting.records import write_records
from lmtransfer.reporting.result_tables import NARROW, ReportRow, drop_run_names, results_table, sweep_table, table_rows
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.sweeps import Sweep, entries_outside
from lmtransfer.reporting.table import markdown_table, print_table
from lmtransfer.system.durable import ensure_folder, write_text
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

if TYPE_CHECKING:
    from lmtransfer.system.console import Console


def print_report(entries: Sequence[Entry], sweeps: Sequence[Sweep], console: Console) -> None:
    """Print the answer, a table of the runs outside sweeps, and a table for each sweep."""
    rows = table_rows(entries_outside(entries, sweeps))
    console.print(answer(entries), style="bold", markup=False)
    if rows:
        print_table(results_table(rows).select(NARROW), console)
    chances = chance_table(entries, revisions=False)
    if chances is not None:
        print_table(chances, console)
    for sweep in sweeps:
        print_table(drop_run_names(sweep_table(sweep)), console)


def markdown_report(
    entries: Sequence[Entry], sweeps: Sequence[Sweep], figures: Sequence[SavedFigure], *, title: str
) -> str:
    """Render the report as Markdown, with links to the figure files."""
    rows = table_rows(entries_outside(entries, sweeps))
    parts = [f"# {title}", answer(entries)]
    if rows:
        parts.append(markdown_table(results_table(rows).without_empty()).rstrip())
    chances = chance_table(entries)
    if chances is not None:
        parts.append(f"## {chances.name}\n\n{markdown_table(chances).rstrip()}\n\n{chances.note}")
    for sweep in sweeps:
        parts.append(f"## Sweep `{sweep.name}`\n\n{markdown_table(sweep_table(sweep)).rstrip()}\n\n\\* the best point")
    parts.extend(f"![{figure.title}](figures/{figure.png.name})" for figure in figures)
    return "\n\n".join(parts) + "\n"


def write_report(
    entries: Sequence[Entry],
    sweeps: Sequence[Sweep],
    folder: Path,
    *,
    title: str,
    figures: bool = True,
    sections: Sequence[Section] = (),
    texts: Texts | None = None,
    records: str | None = None,
) -> list[SavedFigure]:
    """Write ``report.html``, ``report.md``, ``report.json`` and ``figures/``, overwriting an earlier report.

    Args:
        sections: the sections of the HTML page that directly follow the answer.
        texts: finds the texts of examples for the HTML page; None to show no texts.
        records: the format of the records (a key of ``records.FILES``); None to write no records.
    """
    try:
        with ensure_folder(folder):
            drawn_figures = draw_figures(entries, sweeps, folder / "figures") if figures else []
            pages = {
                "report.html": html_report(entries, sweeps, drawn_figures, title=title, sections=sections, texts=texts),
                "report.md": markdown_report(entries, sweeps, drawn_figures, title=title),
                "report.json": to_json(table_rows(entries), sweeps, answer(entries)),
            }
            for name, text in pages.items():
                write_text(folder / name, text)
            if records is not None:
                write_records(entries, folder, records)
    except OSError as error:
        raise RunDirectoryError(
            f"to={folder}: the report cannot be written ({error.strerror or error}); choose another folder with to=..."
        ) from error
    return drawn_figures


def to_json(rows: Sequence[ReportRow], sweeps: Sequence[Sweep], answer: str) -> str:
    """Convert all tables to JSON, with values as fractions, tokens and seconds."""
    points = [
        {
            "name": sweep.name,
            "keys": sweep.keys,
            "metric": sweep.metric,
            "points": [
                {
                    "values": dict(zip(sweep.keys, point.values, strict=True)),
                    "score": None if point.score is None else dataclasses.asdict(point.score),
                    "runs": [entry.run.key for entry in point.entries],
                }
                for point in sweep.points
            ],
        }
        for sweep in sweeps
    ]
    content = {"answer": answer, "rows": [_plain(row) for row in rows], "sweeps": points}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(row: ReportRow) -> dict[str, Any]:
    entry = row.entry
    return {
        "group": entry.group,
        "run": row.run,
        "label": row.label,
        "model": entry.model,
        "objective": entry.objective,
        "corpus": entry.corpus,
        "task": entry.task,
        "transfer": entry.transfer,
        "metric": entry.metric or "",
        "score": _values(entry.score),
        "other_metrics": {name: _values(score) for name, score in row.other_metrics.items()},
        "difference": _values(entry.difference),
        "better_baseline": entry.better_baseline,
        "baseline_difference": _values(entry.baseline_difference),
        "pretraining_tokens": entry.pretraining_tokens,
        "pretraining_seconds": entry.pretraining_seconds,
        "num_parameters": entry.num_parameters,
        "tokens_per_second": entry.tokens_per_second,
        "state": entry.run.state,
        "note": row.note,
        **entry.cost.values(),
    }


def _values(number: Spread | Difference | None) -> dict[str, Any] | None:
    if not isinstance(number, Difference):
        return None if number is None else dataclasses.asdict(number)
    values = number.as_values()
    return {"delta": values.pop("difference"), **values}
