"""Which figures a report has: learning curves, comparisons with the control, and curves over what was varied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmtransfer.reporting.figures.bars import Bar, BarKind, draw_comparison
from lmtransfer.reporting.figures.curves import LossCurve, MetricCurve, draw_loss_curves, draw_metric_curves
from lmtransfer.reporting.figures.layer_bars import layer_figures
from lmtransfer.reporting.figures.loss_against import loss_against_figures
from lmtransfer.reporting.figures.part_curves import part_figures
from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.searches import search_figures
from lmtransfer.reporting.figures.source_curves import source_figures
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.rows import group_name, run_name, table_rows
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.runs.sweeps import Sweep, value_text

#: The part of a pretraining loss that is drawn, by preference: the parts that a unigram entropy can be held against.
_LOSS_PARTS = ("mlm", "lm")


def draw_figures(entries: Sequence[Entry], sweeps: Sequence[Sweep], folder: Path) -> list[SavedFigure]:
    """All figures that the runs have numbers for, as SVG and PNG.

    Args:
        entries: of the report.
        sweeps: of the report.
        folder: where the files go; it is made if need be.
    """
    figures = _comparisons(entries, folder) + _label_curves(entries, folder)
    figures += source_figures(entries, folder) + layer_figures(entries, folder)
    for place, sweep in enumerate(sweeps):
        figure = _sweep_figure(sweep, folder, f"sweep-{place + 1}-{_slug(sweep.name)}")
        if figure is not None:
            figures.append(figure)
    labels = {entry.run.key: run_name(entry) for entry in entries} | _point_labels(sweeps)
    figures += loss_against_figures(entries, folder) + search_figures(entries, folder)
    figures += part_figures([(entry, labels[entry.run.key]) for entry in entries if entry.is_pretraining], folder)
    return figures + _loss_figures(entries, labels, folder) + _metric_figures(entries, labels, folder)


def loss_curve(run: Run, label: str, part: str | None = None) -> LossCurve | None:
    """The loss curve in a run's metrics, or None where there is none.

    Args:
        run: a pretraining run, finished or not.
        label: its name in the figure.
        part: which part of the loss (``mlm``); None for the total.
    """
    training, validation = [], []
    for line in run.metrics:
        tokens, seconds = number(line.get("tokens")), number(line.get("seconds"))
        if tokens is None or seconds is None:
            continue
        loss, held_out = _loss(line, part), number(line.get(f"validation/{part or 'loss'}"))
        if loss is not None:
            training.append((tokens, seconds, loss))
        if held_out is not None:
            validation.append((tokens, seconds, held_out))
    if len(training) < 2:
        return None
    tokens_, seconds_, losses = zip(*training, strict=True)
    plateau = number(run.result.get("unigram_entropy"))
    if plateau is None:
        plateau = next(
            (value for line in run.metrics if (value := number(line.get("unigram_entropy"))) is not None), None
        )
    return LossCurve(label, tokens_, seconds_, losses, tuple(validation), plateau if part in _LOSS_PARTS else None)


def metric_curve(runs: Sequence[Run], label: str, metric: str) -> MetricCurve | None:
    """A development metric over the steps that all seeds have, or None where there are fewer than two.

    Args:
        runs: one run a seed.
        label: name in the figure.
        metric: the metric's name, logged as ``validation/<metric>``.
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


def _loss(line: Mapping[str, Any], part: str | None) -> float | None:
    if part is None:
        return number(line.get("loss"))
    value = number(line.get(f"loss/{part}"))
    return number(line.get(part)) if value is None else value


def _point_labels(sweeps: Sequence[Sweep]) -> dict[str, str]:
    """What the points of sweeps are called: ``mask_prob=0.15``."""
    labels: dict[str, str] = {}
    for sweep in sweeps:
        for point in sweep.points:
            values = zip(sweep.keys, point.values, strict=True)
            label = " ".join(f"{key.rsplit('.', 1)[-1]}={value_text(value)}" for key, value in values)
            labels |= {entry.run.key: label for entry in point.entries}
    return labels


def _loss_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure for each part of the loss, since an LM's and an MLM's losses are not comparable."""
    curves: dict[str, list[LossCurve]] = {}
    for entry in entries:
        if not entry.is_pretraining:
            continue
        runs = entry.seeds or (entry.run,)
        lines = [line for run in runs for line in run.metrics]
        logged = [part for part in _LOSS_PARTS if any(_loss(line, part) is not None for line in lines)]
        part = logged[0] if logged else None
        for run in runs:
            curve = loss_curve(run, labels[entry.run.key], part)
            if curve is not None:
                curves.setdefault(part or "loss", []).append(curve)
    return [
        draw_loss_curves(
            drawn, folder, name="pretraining-loss" + ("" if part == "loss" else f"-{part}"), loss_name=part
        )
        for part, drawn in curves.items()
    ]


def _metric_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure a task and number of labels: the runs with their controls."""
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
                groups.setdefault((group_name(entry), entry.metric), []).append((curve, is_control))
    return [
        draw_metric_curves(
            [curve for curve, _ in drawn],
            folder,
            name=f"learning-{_slug(group)}-{_slug(metric)}",
            title=f"{group}: {metric} on held-out examples while training",
            control=[curve.label for curve, is_control in drawn if is_control],
        )
        for (group, metric), drawn in groups.items()
    ]


def _comparisons(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """For each task the bars of majority, control, probe and finetuned runs, where there are two or more."""
    figures = []
    rows = [row for row in table_rows(entries) if row.score is not None and row.group != "pretraining"]
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group]
        for metric in dict.fromkeys(row.metric for row in members):
            alike = [row for row in members if row.metric == metric and row.score is not None]
            bars = [Bar(row.run, _kind(row.transfer), row.score, row.difference) for row in alike if row.score]
            if len(bars) < 2:
                continue
            name = f"comparison-{_slug(group)}-{_slug(metric)}"
            figures.append(draw_comparison(bars, folder, name=name, title=f"{group}: {metric}", metric=metric))
    return figures


def _kind(transfer: str) -> BarKind:
    kinds: dict[str, BarKind] = {"majority": "majority", "control": "control", "frozen": "frozen"}
    return kinds.get(transfer, "finetuned")


def _label_curves(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """The metric against the number of labels, for each task with two sizes of training set or more."""
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
                name=f"labels-{_slug(where)}-{_slug(metric)}",
                title=f"{where}: {metric} by number of labels",
                key="labelled training examples",
                metric=metric,
                counts=True,
            )
        )
    return figures


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


def _slug(text: str) -> str:
    """Text as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"
