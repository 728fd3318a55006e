"""The table of a study with many transfers: one line a transfer instead of three columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from lmtransfer.reporting.render.cells import metric_heading
from lmtransfer.reporting.units import shown
from lmtransfer.study.plan import Plan
from lmtransfer.study.table import StudyRow, caption, transfer_cells

#: Above so many transfers the table of one line a recipe is too wide to read.
MANY = 3
_HEADINGS = ("", "task", "metric", "majority", "control", "pretrained", "difference")


def transfers_markdown(rows: Sequence[StudyRow], plan: Plan) -> str:
    """As Markdown."""
    lines = [_HEADINGS, ("---",) * len(_HEADINGS), *_lines(rows, plan)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{caption()}\n"


def transfers_table(rows: Sequence[StudyRow], plan: Plan) -> Table:
    """For a terminal."""
    table = Table(
        *_HEADINGS,
        title=f"study {plan.name}",
        title_justify="left",
        title_style="bold",
        caption=caption(),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for line in _lines(rows, plan):
        table.add_row(*line)
    return table


def _lines(rows: Sequence[StudyRow], plan: Plan) -> Iterator[tuple[str, ...]]:
    for row in rows:
        for name in plan.transfers:
            entry = row.transfers.get(name)
            score, control, difference = transfer_cells(entry)
            metric = "" if entry is None or entry.metric is None else entry.metric
            baseline = "" if entry is None or entry.majority is None else shown(entry.majority, metric)
            yield row.recipe, name, metric_heading(metric), baseline, control, score, difference
