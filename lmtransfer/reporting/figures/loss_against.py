"""A loss against a setting that an evaluation varied, such as the length of a memory (Dai et al. 2019, section 4.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure, slug
from lmtransfer.reporting.runs.collect import is_seed
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.learning_rates import tried_rates
from lmtransfer.reporting.runs.scores import higher_is_better, number
from lmtransfer.reporting.runs.sweeps import PRETRAINING_TOKENS, Sweep, value_text
from lmtransfer.verdicts.expected_best import expected_best
from lmtransfer.verdicts.spread import Spread, spread

#: An evaluation, the key that it varied, and the loss at each value.
_Curve = tuple[Entry, str, list[tuple[float, float]]]
#: Names of keys on an axis.
_NAMES = {"memory_length": "memory in evaluation (tokens)"}


def search_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each run that tried at least three learning rates, with its control in grey."""
    figures: list[SavedFigure] = []
    for entry in entries:
        metric = entry.metric or ""
        series: list[Series] = []
        for condition, is_control in (("pretrained", False), ("control", True)):
            tried = tried_rates(entry.run, condition)
            if len(tried) > 2:
                best = _best_of(tried, higher_is_better=higher_is_better(metric, entry.run.result))
                points = tuple((float(k), score) for k, score in enumerate(best, start=1))
                series.append(Series("control" if is_control else entry.name, points, is_control=is_control))
        if series:
            figures.append(
                draw_points(
                    series,
                    folder,
                    name=f"search-{len(figures) + 1}",
                    title=f"{entry.group}: expected best held-out {metric} of {entry.name}",
                    key="learning rates tried",
                    metric=metric,
                    counts=True,
                )
            )
    return figures


def _best_of(tried: Mapping[float, Spread], *, higher_is_better: bool) -> list[Spread]:
    """The expected score of the best of k rates, for each seed; a rate is chosen by its mean over seeds."""
    rates = list(tried.values())
    means = [rate.mean for rate in rates]
    seeds = zip(*(rate.values for rate in rates), strict=True)
    best = [expected_best(means, scores=scores, higher_is_better=higher_is_better) for scores in seeds]
    return [spread(values) for values in zip(*best, strict=True)]


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
