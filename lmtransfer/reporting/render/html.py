"""The whole report as one self-contained HTML file: it makes no requests, and all text in it is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.render.answer import answer, comparison
from lmtransfer.reporting.render.cells import (
    COLUMNS,
    PLUS_MINUS,
    cells,
    metric_heading,
    sweep_cells,
    sweep_headings,
    without_empty,
)
from lmtransfer.reporting.render.page import cell, page, table
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.layer_weights import layer_weights_text
from lmtransfer.reporting.runs.lineage import total
from lmtransfer.reporting.runs.rows import Row, table_rows
from lmtransfer.reporting.runs.sweeps import Sweep, outside
from lmtransfer.reporting.units import count, duration

#: The columns after the run; its model and corpus are below its name, its task above.
_HEADINGS = (
    "transfer",
    "mean",
    "median",
    "seeds",
    "difference to control",
    "verdict",
    "would find",
    "seeds to settle",
    "pretraining",
    "parameters",
    "tokens/s",
)


def html_report(
    entries: Sequence[Entry], sweeps: Sequence[Sweep], figures: Sequence[SavedFigure], *, title: str
) -> str:
    """The page: the answer first, then the table, sweeps, figures, and the configuration and versions of each run.

    Args:
        entries: all runs of the report.
        sweeps: the sweeps of the report; their points are in the tables of the sweeps and not in the main table.
        figures: saved figures, put into the page in this order.
        title: heading of the page.
    """
    compared = [entry for entry in entries if entry.difference is not None]
    rows = table_rows(outside(entries, sweeps))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="answer">{escape(answer(entries))}</p>',
        _list([comparison(entry) for entry in compared]) if len(compared) > 1 else "",
        f"<h2>Results</h2>{_main_table(rows)}{_reading()}" if rows else "",
        *(_sweep_section(sweep) for sweep in sweeps),
        "<h2>Figures</h2>" if figures else "",
        *(_figure(figure) for figure in figures),
        "<h2>Runs</h2>",
        *(_run_details(entry) for entry in entries),
    ]
    return page(title, parts)


def _reading() -> str:
    return (
        '<p class="quiet">Mean \u00b1 sample deviation over seeds; difference with the 95 % interval that decides: '
        "over seeds, in pairs where both sides had them, and over the examples where their predictions are kept, "
        "corrected so that the whole table holds a false better or worse in at most 5 of 100 cases (Holm). Better or "
        "worse: the interval excludes 0. Would find: the smallest difference that is found in 80 of 100 cases. Seeds "
        "to settle: how many would find the difference observed. The control is the same model trained on the same "
        "labels from random initialisation. Tokens are real ones, since nothing is padded.</p>"
    )


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _main_table(rows: Sequence[Row]) -> str:
    body, group = [], None
    for row in rows:
        if row.group != group:
            group = row.group
            metric = next((other.metric for other in rows if other.group == group and other.metric), "")
            heading = metric_heading(metric, of_pretraining=group == "pretraining") if metric else ""
            body.append(f'<tr class="group"><td colspan="2">{escape(group)}</td>')
            body.append(f'<td colspan="10">{escape(heading)}</td></tr>')
        text = dict(zip(COLUMNS, cells(row), strict=True))
        what = " ".join(filter(None, (row.model, row.objective, row.corpus)))
        shown = f'{escape(text["run"])}<br><span class="quiet">{escape(what)}</span>' if what else escape(text["run"])
        note = f'<br><span class="problem">{escape(row.note)}</span>' if row.note and row.score is not None else ""
        css = f' class="{row.transfer}"' if row.transfer in ("majority", "control") else ""
        rest = "".join(cell(text[heading]) for heading in _HEADINGS)
        body.append(f"<tr{css}><td>{shown}{note}</td>{rest}</tr>")
    return table(["run", *_HEADINGS], body)


def _sweep_section(sweep: Sweep) -> str:
    headings, rows = without_empty(sweep_headings(sweep), sweep_cells(sweep))
    body = [f"<tr>{''.join(map(cell, row))}</tr>" for row in rows]
    heading = f"<h2>Sweep {escape(sweep.name)}</h2>"
    return f'{heading}{table(headings, body)}<p class="quiet">* the best point</p>'


def _figure(figure: SavedFigure) -> str:
    """The content of a saved SVG for the page, without its prolog; matplotlib has escaped its texts."""
    svg = figure.svg.read_text(encoding="utf-8")
    svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(figure.title)}" ', 1)
    return f"<figure>{svg}</figure>"


def _run_details(entry: Entry) -> str:
    run = entry.run
    facts: list[str] = [run.state]
    tokens, seconds = total(run, "tokens"), total(run, "seconds")
    facts += [] if tokens is None else [f"{count(tokens)} tokens"]
    facts += [] if seconds is None else [duration(seconds)]
    facts += [] if entry.num_parameters is None else [f"{count(entry.num_parameters)} parameters"]
    facts += [f"{len(entry.seeds)} seeds"] if entry.seeds else []
    problems = [problem for part in (run, *entry.seeds, *entry.controls) for problem in part.problems]
    parts = [f'<p class="problem">{escape(problem)}</p>' for problem in problems]
    rule = run.result.get("chosen_by")
    said = [run.key, *([rule] if isinstance(rule, str) else [])]
    parts.append(f'<p class="quiet">{escape(": ".join(said))}</p>')
    learnt = layer_weights_text(run.result.get("layer_weights"), plus_minus=PLUS_MINUS)
    parts += [f"<p>{escape(learnt)}</p>"] if learnt else []
    versions = next((part.versions for part in (run, *entry.seeds) if part.versions), {})
    for heading, text in (("Configuration", _yaml(run.config)), ("Versions", _yaml(versions))):
        if text:
            parts.append(f"<p>{heading}</p><pre>{escape(text)}</pre>")
    summary = f"<summary>{escape(run.command)} <b>{escape(entry.name)}</b> "
    summary += f'<span class="quiet">{escape(", ".join(facts))}</span></summary>'
    return f"<details>{summary}{''.join(parts)}</details>"


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110) if content else ""
