"""The tables of results: all runs with their baselines, and the points of each sweep."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.reporting.page.table import Cell, Group, Heading, Line, Table, mark_of, plain_table
from lmtransfer.reporting.render.cells import COLUMNS, cells, metric_heading, sweep_cells, sweep_headings, without_empty
from lmtransfer.reporting.runs.rows import Row
from lmtransfer.reporting.runs.sweeps import Sweep

#: The columns after the run; the others are below its name, or in the heading of the group.
_HEADINGS = tuple(name for name in COLUMNS if name not in ("run", "model", "objective", "corpus", "task", "metric"))


def results_table(rows: Sequence[Row]) -> Table:
    """The rows of a report, in groups of comparable runs, without columns that are empty in all rows."""
    names = list(dict.fromkeys(row.group for row in rows))
    groups = tuple(_group(name, [row for row in rows if row.group == name]) for name in names)
    return Table("All results", (Heading("run"), *map(Heading, _HEADINGS)), groups).without_empty()


def _group(name: str, rows: Sequence[Row]) -> Group:
    metric = next((row.metric for row in rows if row.metric), "")
    note = metric_heading(metric, of_pretraining=name == "pretraining") if metric else ""
    return Group(tuple(map(_line, rows)), title=name, note=note)


def _line(row: Row) -> Line:
    text = dict(zip(COLUMNS, cells(row), strict=True))
    what = " ".join(filter(None, (row.model, row.objective, row.corpus)))
    # Without a score, the note is in the place of the score.
    problem = row.note if row.score is not None else ""
    run = Cell(text["run"], notes=(what,) if what else (), problem=problem)
    marks = {"verdict": mark_of(row.difference), "verdict against baseline": mark_of(row.baseline_difference)}
    rest = (Cell(text[heading], mark=marks.get(heading)) for heading in _HEADINGS)
    return Line((run, *rest), kind=row.transfer if row.transfer in ("majority", "baseline", "control") else "")


def sweep_table(sweep: Sweep) -> Table:
    """The points of a sweep, without columns that are empty in all rows."""
    headings, rows = without_empty(sweep_headings(sweep), sweep_cells(sweep))
    return plain_table(f"Sweep {sweep.name}", headings, rows)
