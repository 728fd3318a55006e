"""A loss against what evaluation varied, such as the length of a memory (Dai et al. 2019, section 4.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import run_name
from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import spread

#: What keys are called on an axis.
_NAMES = {"memory_length": "memory in evaluation (tokens)"}


def loss_against_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each key that evaluations varied inside one run, a line a run."""
    lines: dict[str, list[Series]] = {}
    curves = [(entry, *read_curve(entry.run.result.get("curve"))) for entry in entries]
    curves = [(entry, key, points) for entry, key, points in curves if len(points) > 1]
    measured = Counter(_measured(entry) for entry, _, _ in curves)
    for entry, key, points in curves:
        name = _measured(entry) if measured[_measured(entry)] == 1 else run_name(entry)
        series = Series(name, tuple((value, spread((loss,))) for value, loss in points))
        lines.setdefault(key, []).append(series)
    return [
        draw_points(
            series,
            folder,
            name=f"loss-against-{number}",
            title=f"Validation loss by {key.replace('_', ' ')}" + (f": {series[0].label}" if len(series) == 1 else ""),
            key=_NAMES.get(key, key),
            metric="validation loss",
        )
        for number, (key, series) in enumerate(lines.items(), start=1)
    ]


def _measured(entry: Entry) -> str:
    """Name of the run that was evaluated."""
    path = entry.run.config.get("run")
    return PurePath(path).name if isinstance(path, str) else run_name(entry)


def read_curve(node: Any) -> tuple[str, list[tuple[float, float]]]:
    """Key and (value, loss) pairs of a result's ``curve``, ascending; none where it is not there or damaged."""
    if not isinstance(node, Mapping) or not isinstance(node.get("values"), list):
        return "", []
    pairs = zip(map(number, node["values"]), map(number, node.get("losses") or []), strict=False)
    found = [(value, loss) for value, loss in pairs if value is not None and loss is not None]
    return str(node.get("key") or ""), sorted(found)
