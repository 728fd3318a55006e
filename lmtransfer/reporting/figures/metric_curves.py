"""Learning curves of tasks: a development metric against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import (
    GREY,
    MAX_CURVES,
    SavedFigure,
    colour,
    dotted,
    drawing,
    label_ends,
    new_figure,
    save,
    seed_dots,
    shorten,
    slug,
    subtitle,
    with_count,
)
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.runs.sweeps import PRETRAINING_TOKENS
from lmtransfer.system.units import count_formatter, in_percent
from lmtransfer.verdicts.spread import Spread


def revision_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each task and metric, if some line has two points or more."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in _with_revisions(entries):
        groups.setdefault((entry.group, str(entry.metric)), []).append(entry)
    figures = []
    for (task, metric), members in groups.items():
        series = _series(members)
        if max(len(line.points) for line in series) < 2:
            continue
        figures.append(
            draw_points(
                series,
                folder,
                name=f"revisions-{slug(task)}-{slug(metric)}",
                title=f"{task}: {metric} by {PRETRAINING_TOKENS}",
                key=PRETRAINING_TOKENS,
                metric=metric,
                counts=True,
            )
        )
    return figures


def _with_revisions(entries: Sequence[Entry]) -> list[Entry]:
    """The scored entries of runs that have revisions: those that start from a revision, or from the trained model."""
    scored = [entry for entry in entries if entry.source and entry.score and entry.metric]
    ran = {entry.source.path for entry in scored if entry.source and entry.source.revision is not None}
    return [entry for entry in scored if entry.source and entry.source.path in ran]


def _series(entries: Sequence[Entry]) -> list[Series]:
    """One line for each run and way of transfer, and one for its controls."""
    several = len({entry.source.path for entry in entries if entry.source}) > 1
    lines: dict[tuple[str, bool], dict[float | str, Spread]] = {}
    for entry in entries:
        assert entry.source is not None
        assert entry.score is not None
        label = f"{entry.transfer} {entry.source.path.name}" if several else entry.transfer
        tokens = entry.pretraining_tokens or 0.0
        lines.setdefault((label, False), {})[tokens] = entry.score
        if entry.control is not None:
            lines.setdefault((f"{label}, control", True), {})[tokens] = entry.control
    return [
        Series(label, tuple(sorted(points.items(), key=lambda point: float(point[0]))), control)
        for (label, control), points in lines.items()
    ]


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A development metric while training on a task.

    Attributes:
        label: name of the run.
        steps: training steps at which it was measured.
        values: one tuple for each seed, of the length of ``steps``.
        metric: name of the metric.
    """

    label: str
    steps: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    metric: str


def metric_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure for each task and number of labels, with the runs and their controls."""
    groups: dict[tuple[str, str], list[tuple[MetricCurve, bool]]] = {}
    for entry in entries:
        if entry.is_pretraining or entry.metric is None:
            continue
        label = labels[entry.run.key]
        shown = [(entry.seeds or (entry.run,), label, entry.is_control)]
        if entry.controls:
            seeds = tuple(run for run in entry.controls if run.is_seed)
            shown.append((seeds or entry.controls, f"{label} control", True))
        for runs, name, is_control in shown:
            curve = metric_curve(runs, name, entry.metric)
            if curve is not None:
                groups.setdefault((entry.group, entry.metric), []).append((curve, is_control))
    return [
        draw_metric_curves(
            [curve for curve, _ in visible],
            folder,
            name=f"learning-{slug(group)}-{slug(metric)}",
            title=f"{group}: {metric} on held-out examples while training",
            control=[curve.label for curve, is_control in visible if is_control],
        )
        for (group, metric), visible in groups.items()
    ]


def metric_curve(runs: Sequence[Run], label: str, metric: str) -> MetricCurve | None:
    """A development metric at the steps that all seeds have; None if there are fewer than two such steps.

    Args:
        runs: one run for each seed.
        label: name in the figure.
        metric: name of the metric, logged as ``validation/<metric>``.
    """
    logged = []
    for run in runs:
        points = {}
        for line in run.metrics:
            step, value = number(line.get("step")), number(line.get(f"validation/{metric}"))
            if step is not None and value is not None:
                points[step] = value
        logged.append(points)
    steps = sorted(set.intersection(*map(set, logged))) if logged else []
    if len(steps) < 2:
        return None
    values = tuple(tuple(points[step] for step in steps) for points in logged)
    return MetricCurve(label, tuple(steps), values, metric)


def draw_metric_curves(
    curves: Sequence[MetricCurve], folder: Path, *, name: str, title: str, control: Sequence[str] = ()
) -> SavedFigure:
    """Draw a development metric against steps: the mean over seeds as a line, each seed behind it as a line with dots.

    Args:
        curves: at least one run; the first ``MAX_CURVES`` are drawn.
        folder: folder for the files.
        name: file name without suffix.
        title: title of the figure.
        control: labels of the runs without pretraining, drawn grey.
    """
    visible, title = list(curves[:MAX_CURVES]), with_count(title, len(curves))
    metric = visible[0].metric
    factor = 100.0 if in_percent(metric) else 1.0
    with drawing(name):
        figure = new_figure(title, width=7.2, height=3.7)
        axes = figure.subplots()
        ends, inks = [], iter(range(len(visible)))
        for curve in visible:
            ink = GREY if curve.label in control else colour(next(inks))
            values = factor * np.asarray(curve.values, dtype=float)
            if len(values) > 1:
                for seed in values:
                    axes.plot(curve.steps, seed, color=ink, linewidth=0.7, alpha=0.35)
                    some = dotted(len(seed))
                    seed_dots(axes, np.asarray(curve.steps)[some], seed[some], ink, size=2.8)
            mean = values.mean(0)
            marks = "o-" if len(values) == 1 else "-"  # with several seeds, dots mark the seeds
            axes.plot(curve.steps, mean, marks, color=ink, markersize=3.5, linewidth=1.8, markeredgecolor="white")
            ends.append((float(mean[-1]), shorten(curve.label, 26), ink))
        axes.set_xlabel("optimiser steps")
        axes.set_ylabel(f"{metric} (%)" if factor == 100.0 else metric)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(count_formatter())
        if any(len(curve.values) > 1 for curve in visible):
            subtitle(axes, "thick: mean over seeds, thin lines and dots: each seed")
        figure.canvas.draw()
        label_ends(axes, ends)
        return save(figure, folder, name, title)
