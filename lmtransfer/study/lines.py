"""The points of a study's figures: which score stands at which place, on which line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import number
from lmtransfer.study.figure_specs import FigureSpec
from lmtransfer.study.table import StudyRow
from lmtransfer.system.mappings import value_at

Place = float | str

#: Attributes of a pretraining entry.
_OF_PRETRAINING = {
    "parameters": "num_parameters",
    "tokens": "pretraining_tokens",
    "seconds": "pretraining_seconds",
}


@dataclass(frozen=True, slots=True)
class Line:
    """Scores that belong together.

    Attributes:
        label: what they have in common, such as the name of a transfer.
        metric: name of the metric.
        points: (place on the x axis, entry), by place.
    """

    label: str
    metric: str
    points: tuple[tuple[Place, Entry], ...]


def lines_of(spec: FigureSpec, rows: Sequence[StudyRow]) -> list[Line]:
    """The lines of a figure with the runs that are finished; runs without a place on the x axis are left out."""
    found: dict[tuple[str, str], dict[Place, Entry]] = {}
    for row in rows:
        if spec.recipes and row.recipe not in spec.recipes:
            continue
        if spec.y == "loss":
            named = {} if row.pretraining is None else {"pretraining": row.pretraining}
        else:
            named = {name: entry for name, entry in row.transfers.items() if name in (spec.transfers or [name])}
        for transfer, entry in named.items():
            place = _place(spec.x, row, transfer, entry)
            if place is None or entry.score is None or entry.metric is None:
                continue
            found.setdefault((line_label(spec, row, transfer, entry), entry.metric), {})[place] = entry
    return [
        Line(label, metric, tuple(sorted(points.items(), key=_order) if _numeric(points) else points.items()))
        for (label, metric), points in found.items()
    ]


def line_label(spec: FigureSpec, row: StudyRow, transfer: str, entry: Entry) -> str:
    """The label of the line that a run belongs to.

    Args:
        spec: the figure.
        row: the recipe's row.
        transfer: name of the transfer.
        entry: the run.
    """
    labels = {"recipe": row.recipe, "task": entry.task, "method": entry.transfer, "model": entry.model}
    return labels.get(spec.lines, transfer)


def _place(x: str, row: StudyRow, transfer: str, entry: Entry) -> Place | None:
    if x in ("recipe", "transfer", "task"):
        return {"recipe": row.recipe, "transfer": transfer, "task": entry.task}[x]
    if x == "num_train":
        size = number(entry.run.result.get("num_train")) if entry.num_train is None else float(entry.num_train)
        return size
    if x == "layer":
        return _plain(value_at(entry.run.config, "transfer.layers"))
    if x in _OF_PRETRAINING:
        return None if row.pretraining is None else getattr(row.pretraining, _OF_PRETRAINING[x])
    if x == "flops":
        return None if row.pretraining is None else number(row.pretraining.run.result.get("flops"))
    pretrained = None if row.pretraining is None else value_at(row.pretraining.run.config, x)
    return _plain(value_at(entry.run.config, x) if pretrained is None else pretrained)


def _plain(value: Any) -> Place | None:
    """A value as a place: a number, or else its text."""
    if value is None:
        return None
    found = number(value)
    return str(value) if found is None else found


def _numeric(points: Mapping[Place, Entry]) -> bool:
    return all(isinstance(place, float | int) for place in points)


def _order(point: tuple[Place, Entry]) -> float:
    return float(point[0])
