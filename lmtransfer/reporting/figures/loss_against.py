"""A loss against a setting that an evaluation varied, such as the length of a memory (Dai et al. 2019, section 4.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.collect import is_seed
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import spread

#: An evaluation, the key that it varied, and the loss at each value.
_Curve = tuple[Entry, str, list[tuple[float, float]]]

#: Names of keys on an axis.
_NAMES = {"memory_length": "memory in evaluation (tokens)"}


def loss_against_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each key that evaluations varied, with one line for each run; the seeds of a run share a line."""
    lines: dict[str, list[Series]] = {}
    curves = [(entry, *read_curve(entry.run.result.get("curve"))) for entry in entries]
    together = _together([(entry, key, points) for entry, key, points in curves if len(points) > 1])
    measured = Counter(_measured(members[0][0]) for members in together)
    for members in together:
        entry, key, points = members[0]
        name = _measured(entry) if measured[_measured(entry)] == 1 else entry.name
        losses = zip(*([loss for _, loss in of_seed] for _, _, of_seed in members), strict=True)
        series = Series(name, tuple((value, spread(of)) for (value, _), of in zip(points, losses, strict=True)))
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


def _together(curves: Sequence[_Curve]) -> list[list[_Curve]]:
    """Group the curves of the seeds of a run, if each seed was measured once and at the same values."""
    groups: dict[object, list[_Curve]] = {}
    for place, (entry, key, points) in enumerate(curves):
        path = _evaluated(entry)
        of_seed = path is not None and is_seed(path.name)
        values = tuple(value for value, _ in points)
        groups.setdefault((path.parent, key, values) if of_seed and path else place, []).append(curves[place])
    made = []
    for members in groups.values():
        once = len({_evaluated(entry) for entry, _, _ in members}) == len(members)
        made += [members] if once else [[member] for member in members]
    return made


def _measured(entry: Entry) -> str:
    """Name of the evaluated run; for a seed, the name of its parent run."""
    path = _evaluated(entry)
    if path is None:
        return entry.name
    return path.parent.name if is_seed(path.name) else path.name


def _evaluated(entry: Entry) -> PurePath | None:
    path = entry.run.config.get("run")
    return PurePath(path) if isinstance(path, str) else None


def read_curve(node: Any) -> tuple[str, list[tuple[float, float]]]:
    """Key and (value, loss) pairs of a result's ``curve``, ascending; no pairs if it is missing or damaged."""
    if not isinstance(node, Mapping) or not isinstance(node.get("values"), list):
        return "", []
    pairs = zip(map(number, node["values"]), map(number, node.get("losses") or []), strict=False)
    found = [(value, loss) for value, loss in pairs if value is not None and loss is not None]
    return str(node.get("key") or ""), sorted(found)
