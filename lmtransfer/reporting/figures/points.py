"""Lines through points: a metric against a varied setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.reporting.figures.style import (
    GREY,
    MARKERS,
    MAX_CURVES,
    SavedFigure,
    colour,
    drawing,
    label_ends,
    marker,
    new_figure,
    save,
    seed_dots,
    shorten,
    subtitle,
)
from lmtransfer.system.units import count_formatter, in_percent, shown
from lmtransfer.verdicts.spread import Spread

#: Distance of the points of two lines at the same name, where neighbouring names are 1 apart.
_OFFSET = 0.17
#: The same at the same number: in typographic points, at most, and for all lines together. Above so many numbers the
#: lines stand above each other.
_ASIDE, _ALL_ASIDE, _MAX_APART = 5.0, 30.0, 8


@dataclass(frozen=True, slots=True)
class Series:
    """One line through points.

    Attributes:
        label: label of the line.
        points: (value of the varied key, score); numbers in ascending order, or names in any order.
        is_control: whether it is drawn grey.
    """

    label: str
    points: tuple[tuple[float | str, Spread], ...]
    is_control: bool = False


def draw_points(
    series: Sequence[Series], folder: Path, *, name: str, title: str, key: str, metric: str, counts: bool = False
) -> SavedFigure:
    """Draw one line for each series, with whiskers of one standard deviation over seeds and a small dot for each seed.

    Args:
        series: the lines.
        folder: folder for the files.
        name: file name without suffix.
        title: title of the figure.
        key: the varied key.
        metric: name of the metric, which decides the unit.
        counts: whether the key is a count, so that 1000 is shown as 1k.
    """
    with drawing(name):
        figure = new_figure(title, width=7.2, height=3.9)
        axes = figure.subplots()
        ends = draw_on(axes, series, key=key, metric=metric, counts=counts)
        figure.canvas.draw()
        if len(series) > 1:
            label_ends(axes, ends)
        return save(figure, folder, name, title)


def draw_on(
    axes: Any, series: Sequence[Series], *, key: str, metric: str, counts: bool = False
) -> list[tuple[float, str, str]]:
    """Draw the lines into axes of an open figure; see ``draw_points``.

    Returns:
        Input of ``label_ends``: the end of each line, its label, its colour.
    """
    factor = 100.0 if in_percent(metric) else 1.0
    keys = list(dict.fromkeys(point[0] for line in series for point in line.points))
    numeric = all(isinstance(value, int | float) for value in keys)
    if numeric:
        keys.sort(key=float)
    place = {value: float(value) if numeric else float(index) for index, value in enumerate(keys)}
    ends, spreads, dots = [], False, False
    coloured = iter(range(len(series)))
    many = sum(not line.is_control for line in series) > MAX_CURVES
    for number, line in enumerate(series):
        index = None if line.is_control else next(coloured)
        ink, mark = (GREY, "o") if index is None else (colour(index), marker(index))
        style: Any = (0, (4, 2)) if line.is_control else "-"
        aside = 0.0
        if not numeric:
            style = "none"  # names have no order, so no line connects them
            aside = _OFFSET * (number - (len(series) - 1) / 2)
        xs = [place[value] + aside for value, _ in line.points]
        means = [factor * score.mean for _, score in line.points]
        deviations = [factor * (score.deviation or 0.0) for _, score in line.points]
        spreads = spreads or any(deviations)
        drawn = axes.errorbar(
            xs,
            means,
            yerr=deviations if any(deviations) else None,
            fmt=mark,
            color=ink,
            linewidth=1.2 if line.is_control else 1.8,
            linestyle=style,
            markersize=5,
            elinewidth=1.2,
            capsize=3,
        )
        artists = list(drawn.get_children())
        for x, (_, score) in zip(xs, line.points, strict=True):
            if len(score.values) > 1:
                ys = [factor * value for value in score.values]
                artists.append(seed_dots(axes, [x] * len(ys), ys, ink))
                dots = True
        if numeric and 1 < len(keys) <= _MAX_APART:
            step = min(_ASIDE, _ALL_ASIDE / len(series))
            _move_aside(axes, artists, step * (number - (len(series) - 1) / 2))
        label = shorten(line.label, 26)
        ends.append((means[-1], f"{MARKERS[mark]} {label}" if many else label, ink))
    shown_places = _set_places(axes, [place[value] for value in keys], keys, numeric=numeric, counts=counts)
    if len(series) == 1:
        points = tuple(point for point in series[0].points if place[point[0]] in shown_places)
        _label_values(axes, [place[value] for value, _ in points], points, metric, factor)
    axes.margins(y=0.18)
    axes.set_xlabel(key)
    axes.set_ylabel(f"{metric} (%)" if factor == 100.0 else metric)
    if spreads:
        subtitle(axes, "mean and deviation over seeds" + (", small dots: seeds" if dots else ""))
    return ends


def _move_aside(axes: Any, artists: Sequence[Any], points: float) -> None:
    """Draw artists so many typographic points to the right of their place, at any scale of the axis."""
    from matplotlib.transforms import ScaledTranslation

    aside = ScaledTranslation(points / 72, 0.0, axes.figure.dpi_scale_trans)
    for artist in artists:
        artist.set_transform(axes.transData + aside)


def _set_places(axes: Any, places: list[float], keys: list[float | str], *, numeric: bool, counts: bool) -> set[float]:
    """Set scale, limits and ticks of the varied key; return the positions with a tick, which excludes crowded ones."""
    ticks = places
    if numeric and places[0] > 0 and places[-1] / places[0] >= 8:
        axes.set_xscale("log")
        axes.minorticks_off()
        margin = (places[-1] / places[0]) ** 0.06
        axes.set_xlim(places[0] / margin, places[-1] * margin)
    elif numeric and counts and places[0] == 0 and len(places) > 2 and places[-1] / places[1] >= 8:
        axes.set_xscale("symlog", linthresh=places[1], linscale=0.5)  # logarithmic, with a place for 0
        axes.minorticks_off()
    elif numeric:
        ticks = _far_apart(places, 0.055 * (places[-1] - places[0]))
    axes.set_xticks(ticks)
    if numeric:
        formatter = count_formatter() if counts else (lambda value, _: f"{value:g}")
        axes.xaxis.set_major_formatter(formatter)
    else:
        rotation: Any = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if len(keys) > 4 else {}
        axes.set_xticklabels([shorten(str(value), 22) for value in keys], **rotation)
        axes.set_xlim(-0.5, len(keys) - 0.5)
    return set(ticks)


def _far_apart(places: Sequence[float], gap: float) -> list[float]:
    """Positions in ascending order: the first, the last, and those between that are at least ``gap`` apart."""
    kept = [places[0]]
    for place in places[1:-1]:
        if place - kept[-1] >= gap and places[-1] - place >= gap:
            kept.append(place)
    return [*kept, *places[1:][-1:]]


def _label_values(
    axes: Any, xs: list[float], points: Sequence[tuple[float | str, Spread]], metric: str, factor: float
) -> None:
    for x, (_, score) in zip(xs, points, strict=True):
        top = factor * (score.mean + (score.deviation or 0.0))
        if math.isfinite(top):
            axes.annotate(
                shown(score.mean, metric),
                (x, top),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
            )
