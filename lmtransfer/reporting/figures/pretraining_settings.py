"""The effect of a pretraining setting: the pretraining loss and the task scores against its values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.reporting.figures.points import Series, draw_on
from lmtransfer.reporting.figures.style import SavedFigure, drawing, label_ends, new_figure, save, subtitle
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.sweeps import values_of_sweep
from lmtransfer.verdicts.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class SourceCurves:
    """Pretraining runs that differ in one number only, and the task runs that started from them.

    Attributes:
        key: dotted key of the setting.
        metric: metric of pretraining.
        losses: validation metric at each value.
        task: task of the runs that started from them.
        task_metric: metric of the task.
        series: task scores at each value, one line for each way of transfer and for its control.
    """

    key: str
    metric: str
    losses: tuple[tuple[float, Spread], ...]
    task: str
    task_metric: str
    series: tuple[Series, ...]


def source_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each folder of pretraining runs that differ in one number, and each task trained from them."""
    return [draw_source_curves(found, folder, name=f"setting-{n}") for n, found in enumerate(source_curves(entries), 1)]


def source_curves(entries: Sequence[Entry]) -> list[SourceCurves]:
    """The curves to draw."""
    folders: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.is_pretraining and entry.score is not None:
            folders.setdefault(entry.run.key.rpartition("/")[0], []).append(entry)
    found = []
    for members in folders.values():
        keys, table = values_of_sweep([entry.run for entry in members])
        values = [row[0] for row in table] if len(keys) == 1 else []
        if len(set(values)) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        by_run = {entry.run.path: float(value) for entry, value in zip(members, values, strict=True)}
        losses = _together((by_run[entry.run.path], entry.score) for entry in members if entry.score is not None)
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            source = entry.source
            is_trained = source is not None and source.revision is None and source.path in by_run
            if is_trained and entry.score and entry.metric:
                groups.setdefault((entry.group, entry.metric), []).append(entry)
        for (task, metric), learned in groups.items():
            series = _series(learned, by_run)
            if max(len(line.points) for line in series) > 1:
                loss = members[0].metric or "loss"
                found.append(SourceCurves(keys[0], loss, losses, task, metric, series))
    return found


def _series(entries: Sequence[Entry], by_run: dict[Path, float]) -> tuple[Series, ...]:
    lines: dict[tuple[str, bool], list[tuple[float, Spread]]] = {}
    for entry in entries:
        if entry.source is None or entry.score is None:
            continue
        place = by_run[entry.source.path]
        lines.setdefault((entry.transfer, False), []).append((place, entry.score))
        if entry.control is not None:
            lines.setdefault((f"{entry.transfer}, control", True), []).append((place, entry.control))
    return tuple(Series(label, _together(points), control) for (label, control), points in lines.items())


def _together(points: Iterable[tuple[float, Spread]]) -> tuple[tuple[float, Spread], ...]:
    """The points in ascending order; of several runs at one value the spread of their means."""
    at: dict[float, list[Spread]] = {}
    for value, score in points:
        at.setdefault(value, []).append(score)
    return tuple(
        (value, scores[0] if len(scores) == 1 else spread([score.mean for score in scores]))
        for value, scores in sorted(at.items(), key=lambda item: item[0])
    )


def draw_source_curves(found: SourceCurves, folder: Path, *, name: str) -> SavedFigure:
    """Draw the loss on the left and the scores on the right, against the setting."""
    title = f"{found.key}: pretraining loss, and scores on {found.task}"
    with drawing(name):
        figure = new_figure(title, width=9.6, height=3.9)
        left, right = figure.subplots(1, 2, width_ratios=(4, 5))
        loss = [Series("pretraining", found.losses)]
        ends = [
            draw_on(axes, series, key=found.key, metric=metric)
            for axes, series, metric in (
                (left, loss, f"validation {found.metric}"),
                (right, found.series, found.task_metric),
            )
        ]
        subtitle(left, "losses at other values may not be comparable")
        figure.canvas.draw()
        label_ends(right, ends[1])
        return save(figure, folder, name, title)
