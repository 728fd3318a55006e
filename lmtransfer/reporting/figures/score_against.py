"""A score against a setting that varies between runs: the number of labels, or a swept key such as the masking rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure, slug
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.sweeps import PRETRAINING_TOKENS, Sweep, value_text


def label_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """The metric against the number of labels, for each task with at least two sizes of training set."""
    tasks: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        if entry.num_train and entry.score is not None and entry.metric is not None:
            tasks.setdefault((entry.task, entry.split, entry.metric), []).append(entry)
    figures = []
    for (task, split, metric), members in tasks.items():
        lines: dict[tuple[str, bool], dict[float | str, Any]] = {}
        for entry in members:
            ways = [(entry.transfer, entry.score, entry.is_control)]
            if entry.control is not None:
                ways.append(("frozen control" if entry.transfer == "frozen" else "control", entry.control, True))
            source = "" if entry.source is None else entry.source.name
            for way, score, is_control in ways:
                label = way if is_control else " ".join(filter(None, (way, source)))
                lines.setdefault((label, is_control), {})[float(entry.num_train or 0)] = score
        series = [Series(label, tuple(sorted(points.items())), control) for (label, control), points in lines.items()]
        if max(len(line.points) for line in series) < 2:
            continue
        where = ", ".join(filter(None, (task, split)))
        figures.append(
            draw_points(
                series,
                folder,
                name=f"labels-{slug(where)}-{slug(metric)}",
                title=f"{where}: {metric} by number of labels",
                key="labelled training examples",
                metric=metric,
                counts=True,
            )
        )
    return figures


def sweep_figures(sweeps: Sequence[Sweep], folder: Path) -> list[SavedFigure]:
    """One figure for each sweep with at least two points; sweeps over revisions are in ``revision_curves``."""
    visible = (
        _sweep_figure(sweep, folder, f"sweep-{n}-{slug(sweep.name)}")
        for n, sweep in enumerate(sweeps, start=1)
        if sweep.keys != (PRETRAINING_TOKENS,)
    )
    return [figure for figure in visible if figure is not None]


def _sweep_figure(sweep: Sweep, folder: Path, name: str) -> SavedFigure | None:
    """The metric against the first swept key, one line for each combination of the others; None below two points."""
    scored = [point for point in sweep.points if point.score is not None]
    if len(scored) < 2 or sweep.metric is None:
        return None
    first = [point.values[0] for point in scored]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in first)
    lines: dict[str, list[tuple[float | str, Any]]] = {}
    controls: dict[float | str, Any] = {}
    for point in scored:
        rest = zip(sweep.keys[1:], point.values[1:], strict=True)
        label = ", ".join(f"{key.rsplit('.', 1)[-1]}={value_text(value)}" for key, value in rest)
        place: float | str = float(point.values[0]) if numeric else value_text(point.values[0])
        lines.setdefault(label, []).append((place, point.score))
        if len(point.entries) == 1 and point.entries[0].control is not None:
            controls[place] = point.entries[0].control
    series = [Series(label or "pretrained", tuple(points)) for label, points in lines.items()]
    if len(sweep.keys) == 1 and len(controls) == len(scored):
        series.append(Series("control", tuple(controls.items()), is_control=True))
    key = sweep.keys[0]
    metric = f"validation {sweep.metric}" if scored[0].entries[0].is_pretraining else sweep.metric
    return draw_points(series, folder, name=name, title=f"{metric} by {key}", key=key, metric=metric)
