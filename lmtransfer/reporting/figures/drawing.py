"""Draws charts; each kind of panel has a function that draws the panel on a pair of axes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.reporting.figures.spec import (
    COUNTS,
    HEADINGS,
    Chart,
    Kind,
    LossCurve,
    Panel,
    Place,
    Series,
    are_numbers,
)
from lmtransfer.reporting.figures.style import (
    DASHES,
    GRAY,
    INK,
    MARKERS,
    SavedFigure,
    color,
    dot_places,
    figure_style,
    label_ends,
    marker,
    new_figure,
    save,
    seed_dots,
    shorten,
    subtitle,
    unit,
)
from lmtransfer.system.printable import count_formatter, format_difference, format_metric, time_unit
from lmtransfer.verdicts.spread import Spread

#: The end of a line, as ``label_ends`` needs it: the y value, the label and the color.
End = tuple[float, str, str]

#: Maximum distance between two lines at the same name, and between the first and the last line; neighboring names are
#: 1 apart.
_OFFSET, _ALL_OFFSET = 0.17, 0.7
#: The same two distances for lines at the same number on the x axis, in typographic points. If there are more than
#: ``_MAX_APART`` numbers, lines are not shifted.
_ASIDE, _ALL_ASIDE, _MAX_APART = 8.0, 40.0, 8
#: Distance of the two differences of a bar from its middle; neighboring bars are 1 apart.
_APART = 0.22
#: Distance in points between the whisker of a bar and the dots of its seeds, which would otherwise hide it.
_BESIDE = 6.5
#: Minimum distance between ticks, as a fraction of the axis.
_TICK_GAP = 0.065
#: Maximum total number of letters in names that are written horizontally below an x axis.
_MAX_LETTERS = 60
#: Letters per inch in a legend.
_LETTERS_PER_INCH = 15
#: Total width of the bars at one name.
_BARS = 0.8
#: Maximum number of points in a loss curve; more points would be invisible and only make the file larger.
_MAX_POINTS = 500
#: Maximum number of phases whose start is drawn for one run.
_MAX_CHANGES = 8


def draw(chart: Chart, folder: Path) -> SavedFigure:
    """Draw a figure and save it as SVG and PNG."""
    panels = chart.panels
    kinds = [panel.kind for panel in panels]
    shared = "differences" in kinds or (len(set(kinds)) == 1 and "points" not in kinds)
    width, height = _size(panels)
    with figure_style(chart.name):
        figure = new_figure(chart.title, width=width, height=height)
        ratios = [2 if kind == "differences" else 3 for kind in kinds]
        all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=shared, width_ratios=ratios)[0]
        ends = [_DRAW[panel.kind](axes, panel) for axes, panel in zip(all_axes, panels, strict=True)]
        figure.draw_without_rendering()  # this positions the axes, which ``label_ends`` needs
        for place, kind in enumerate(kinds):
            if kind not in kinds[place + 1 :]:  # panels of one kind have the same lines
                label_ends(all_axes[place], [end for end in ends[place] if end[1]])
        caption = " ".join([f"{chart.title}.", *chart.remarks]) if chart.remarks else chart.title
        return save(figure, folder, chart.name, caption)


def _size(panels: Sequence[Panel]) -> tuple[float, float]:
    first, width = panels[0], 7.2 if len(panels) == 1 else 9.2
    num_places = len(first.places)
    if first.kind == "columns":
        num_bars = sum(not line.is_reference for line in first.series)
        return max(5.2, 1.9 + num_places * (0.75 + 0.16 * num_bars)), 3.9
    if first.kind == "bars":
        has_two = any(line.label for panel in panels if panel.kind == "differences" for line in panel.series)
        return width, 1.35 + (0.56 if has_two else 0.42) * num_places
    if first.kind == "points" and not are_numbers(first.places):
        return max(width, 2.2 + 0.42 * num_places), 3.9
    return width, 4.4 if first.kind == "reliability" else 3.9


def _with_colors(series: Sequence[Series]) -> Iterator[tuple[Series, str]]:
    numbers = iter(range(len(series)))
    for line in series:
        yield line, line.ink or (GRAY if line.is_control else color(next(numbers)))


def draw_points(axes: Any, panel: Panel) -> list[End]:
    """Draw scores against numbers or names, with a line per series, a whisker of one deviation, and a dot per seed."""
    series = panel.series
    factor, heading = unit(panel.y)
    keys, numeric = panel.places, are_numbers(panel.places)
    if numeric:
        keys.sort(key=float)
    at = {value: float(value) if numeric else float(index) for index, value in enumerate(keys)}
    offset = 0.0 if numeric else min(_OFFSET, _ALL_OFFSET / len(series))
    ends, has_deviations, has_dots = [], False, False
    marks = _markers(series)
    aside = min(_ASIDE, _ALL_ASIDE / len(series)) if numeric and 1 < len(keys) <= _MAX_APART else 0.0
    for number, (line, ink) in enumerate(_with_colors(series)):
        mark = marks[number]
        shift = number - (len(series) - 1) / 2
        xs = [at[value] + offset * shift for value, _ in line.points]
        means = [factor * score.mean for _, score in line.points]
        deviations = [factor * (score.deviation or 0.0) for _, score in line.points]
        has_deviations = has_deviations or any(deviations)
        bars = axes.errorbar(
            xs,
            means,
            yerr=deviations if any(deviations) else None,
            fmt=mark,
            color=ink,
            linewidth=1.2 if line.is_control else 1.8,
            # Names are unordered, so no line connects them.
            linestyle="none" if not numeric else (0, (4, 2)) if line.is_control else "-",
            markersize=5,
            elinewidth=1.2,
            capsize=2,
        )
        _shift(axes, bars.get_children(), aside * shift)
        for x, (_, score) in zip(xs, line.points, strict=True):
            if len(score.values) > 1:
                ys = [factor * value for value in score.values]
                dots = seed_dots(axes, [x + offset / 2] * len(ys), ys, ink)
                # Beside the whisker, and no further than half the way to the next line.
                _shift(axes, [dots], aside * shift + (0.0 if offset else (aside or _ASIDE) / 2))
                has_dots = True
        label = shorten(line.label, 26)
        ends.append((means[-1], f"{MARKERS[mark]} {label}" if label and len(series) > 1 else label, ink))
    ticks = _set_places(axes, [at[value] for value in keys], keys, counts=panel.x in COUNTS)
    if len(series) == 1:
        _label_values(axes, [(at[value], score) for value, score in series[0].points if at[value] in ticks], panel.y)
    axes.margins(y=0.18)
    axes.set_xlabel(HEADINGS.get(panel.x, panel.x))
    axes.set_ylabel(heading)
    explained = "mean and deviation over seeds" + (", small dots: seeds" if has_dots else "")
    subtitle(axes, panel.note or (explained if has_deviations else ""))
    return ends


def _markers(series: Sequence[Series]) -> list[str]:
    """Return a marker for each line; a control has the marker of the line that it is the control of."""
    own = [line.label for line in series if not line.is_control]
    of_lines = {label: marker(number) for number, label in enumerate(own)}

    def of_control(label: str) -> str:
        method = label.removesuffix("control").rstrip(", ")
        return next((mark for name, mark in of_lines.items() if method and name.startswith(method)), marker(0))

    return [of_control(line.label) if line.is_control else of_lines[line.label] for line in series]


def _shift(axes: Any, artists: Sequence[Any], right: float, down: float = 0.0) -> None:
    """Shift artists by a number of typographic points, independently of the scales of the axes."""
    from matplotlib.transforms import ScaledTranslation

    translation = ScaledTranslation(right / 72, -down / 72, axes.figure.dpi_scale_trans)
    for artist in artists:
        artist.set_transform(axes.transData + translation)


def _set_places(axes: Any, places: list[float], keys: Sequence[Place], *, counts: bool) -> set[float]:
    """Set the scale, limits and ticks of the x axis, and return the positions that have a tick."""
    if not are_numbers(keys):
        names = [shorten(str(key), 22) for key in keys]
        overlap = sum(len(name) + 2 for name in names) > _MAX_LETTERS
        rotation: Any = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if overlap else {}
        axes.set_xticks(places, names, **rotation)
        axes.set_xlim(-0.5, len(keys) - 0.5)
        return set(places)
    on_paper = places
    if places[0] > 0 and places[-1] / places[0] >= 8:
        axes.set_xscale("log")
        axes.minorticks_off()
        margin = (places[-1] / places[0]) ** 0.06
        axes.set_xlim(places[0] / margin, places[-1] * margin)
        on_paper = [math.log10(place) for place in places]
    elif counts and places[0] == 0 and len(places) > 2 and places[-1] / places[1] >= 8:
        axes.set_xscale("symlog", linthresh=places[1], linscale=0.5)  # logarithmic, with room for 0
        axes.minorticks_off()
        on_paper = [0.0, *(0.5 + math.log10(place / places[1]) for place in places[1:])]
    ticks = [places[index] for index in _choose_ticks(on_paper)]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(count_formatter() if counts else (lambda value, _: f"{value:g}"))
    return set(ticks)


def _choose_ticks(places: Sequence[float]) -> list[int]:
    """Return the indices of the places that get a tick: the first, the last, and those far enough from other ticks."""
    gap, ticks = _TICK_GAP * (places[-1] - places[0]), [0]
    for index, place in enumerate(places[1:-1], start=1):
        if place - places[ticks[-1]] >= gap and places[-1] - place >= gap:
            ticks.append(index)
    return [*ticks, *([len(places) - 1] if len(places) > 1 else [])]


def _label_values(axes: Any, points: Sequence[tuple[float, Spread]], metric: str) -> None:
    for x, score in points:
        top = unit(metric)[0] * (score.mean + (score.deviation or 0.0))
        if math.isfinite(top):
            _label(axes, format_metric(score.mean, metric), (x, top), 7)


def _label(axes: Any, text: str, point: tuple[float, float], above: float) -> None:
    axes.annotate(
        text,
        point,
        xytext=(0, above),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )


def draw_curves(axes: Any, panel: Panel) -> list[End]:
    """Draw a metric during training: the mean over seeds as a thick line, and each seed as a thin line with dots."""
    factor, heading = unit(panel.y)
    ends, has_seeds = [], False
    for line, ink in _with_colors(panel.series):
        xs = np.array([float(x) for x, _ in line.points])
        means = [factor * score.mean for _, score in line.points]
        if line.is_reference:
            axes.plot(xs, means, color=ink, linewidth=1.2, linestyle=DASHES)
        elif means:
            seeds = factor * np.array([score.values for _, score in line.points]).T
            is_single = len(seeds) < 2
            for seed in [] if is_single else seeds:
                axes.plot(xs, seed, color=ink, linewidth=0.7, alpha=0.35)
                places = dot_places(len(xs))
                seed_dots(axes, xs[places], seed[places], ink, size=2.8)
            # With several seeds, dots mark the seeds.
            axes.plot(xs, means, "o-" if is_single else "-", color=ink, markersize=3.5, linewidth=1.8, mec="white")
            ends.append((means[-1], shorten(line.label, 26), ink))
            has_seeds = has_seeds or not is_single
    axes.set_xlabel(panel.x)
    axes.set_ylabel(heading)
    axes.set_xlim(left=0)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    axes.xaxis.set_major_formatter(count_formatter())
    subtitle(axes, panel.note or ("thick: mean over seeds, thin lines and dots: each seed" if has_seeds else ""))
    return ends


def draw_loss(axes: Any, panel: Panel) -> list[End]:
    """Draw the training and validation losses of pretraining runs against tokens or seconds.

    The seeds of a run share a color and a label. Each seed is a thin line with a dot at every validation, or at the end
    if there was no validation.
    """
    by_tokens = panel.x == "tokens"
    scale, time = time_unit(max((curve.seconds[-1] for curve in panel.losses if curve.seconds), default=0.0))
    scale = 1.0 if by_tokens else scale
    runs: dict[str, list[LossCurve]] = {}
    for curve in panel.losses:
        runs.setdefault(curve.label, []).append(curve)
    ends = []
    for index, (label, seeds) in enumerate(runs.items()):
        for seed in seeds:
            _draw_seed_loss(axes, seed, color(index), scale, by_tokens=by_tokens, is_single=len(seeds) == 1)
        num_seeds = f" ({len(seeds)} seeds)" if len(seeds) > 1 else ""
        ends.append((float(np.mean([_end(seed) for seed in seeds])), shorten(label, 26) + num_seeds, color(index)))
        for tokens, seconds, phase in seeds[0].changes[:_MAX_CHANGES]:
            x = tokens if by_tokens else seconds / scale
            axes.axvline(x, color=color(index), linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
            if by_tokens:
                _note(axes, f"phase {shorten(phase, 16)}", (x, 1.0), ("data", "axes fraction"), (3, -3), color(index))
    for plateau in sorted({round(curve.plateau, 2) for curve in panel.losses if curve.plateau is not None}):
        axes.axhline(plateau, color=GRAY, linewidth=1.0, linestyle=DASHES, zorder=1)
        if by_tokens:
            _note(axes, f"unigram entropy {plateau:.2f}", (1.0, plateau), ("axes fraction", "data"), (-2, 3))
    axes.set_xlabel("tokens" if by_tokens else f"training time ({time})")
    axes.set_xlim(left=0)
    if by_tokens:
        _draw_references(axes, panel.losses)
        axes.set_ylabel(f"{panel.y} (nats)")
        axes.xaxis.set_major_formatter(count_formatter())
        has_validation, has_seeds = any(curve.validation for curve in panel.losses), len(panel.losses) > len(runs)
        marks = ["line: training", *(["dots: validation"] if has_validation else ["dots: seeds"] if has_seeds else [])]
        subtitle(axes, ", ".join([*marks, *(["of each seed"] if has_validation and has_seeds else [])]))
    return ends


def _draw_seed_loss(axes: Any, curve: LossCurve, ink: str, scale: float, *, by_tokens: bool, is_single: bool) -> None:
    """Draw the smoothed loss and the validations of a seed, and for a single seed also the logged losses."""
    x = np.asarray(curve.tokens if by_tokens else curve.seconds, dtype=float) / scale
    smooth, stride = curve.smooth, max(1, len(x) // _MAX_POINTS)
    if is_single and len(x) >= 60:  # shorter curves are not smoothed
        axes.plot(x[::stride], curve.loss[::stride], color=ink, linewidth=0.6, alpha=0.22)
    axes.plot(x[::stride], smooth[::stride], color=ink, linewidth=1.8 if is_single else 1.0)
    if curve.validation:
        tokens, seconds, losses = np.asarray(curve.validation, dtype=float).T
        x = tokens if by_tokens else seconds / scale
        if is_single:
            axes.plot(x, losses, "o", color=ink, markersize=4.5, markeredgecolor="white", zorder=4)
        else:
            places = dot_places(len(x))
            seed_dots(axes, x[places], losses[places], ink)
    elif not is_single:
        seed_dots(axes, x[-1:], smooth[-1:], ink)


def _draw_references(axes: Any, curves: Sequence[LossCurve]) -> None:
    """Draw reference curves in gray, shifted by the difference between the unigram entropies of the two texts."""
    references = {
        id(reference): (reference, curve.plateau)
        for curve in curves
        if curve.plateau is not None
        for reference in curve.references
    }
    longest = max((curve.tokens[-1] for curve in curves), default=0.0)
    for reference, plateau in references.values():
        x, y = np.asarray(reference.tokens), np.asarray(reference.loss) + plateau - reference.entropy
        axes.plot(x[x <= longest], y[x <= longest], color=GRAY, linewidth=0.9, alpha=0.6, zorder=0.5)


def _end(curve: LossCurve) -> float:
    if curve.validation:
        return curve.validation[-1][2]
    finite = [value for value in curve.loss if np.isfinite(value)]
    return finite[-1] if finite else 0.0


def _note(
    axes: Any,
    text: str,
    at: tuple[float, float],
    within: tuple[str, str],
    offset: tuple[int, int],
    ink: str = "#666666",
) -> None:
    """Write a small note at a position, on the side to which ``offset`` points."""
    axes.annotate(
        text,
        at,
        xycoords=within,
        xytext=offset,
        textcoords="offset points",
        ha="left" if offset[0] > 0 else "right",
        va={1: "baseline", 0: "center", -1: "top"}[int(np.sign(offset[1]))],
        color=ink,
        fontsize=8,
    )


def draw_bars(axes: Any, panel: Panel, *, vertical: bool = False) -> list[End]:
    """Draw a bar for each mean, with a whisker of one deviation and a dot per seed; bars of one name are adjacent."""

    def at(place: Any, value: Any) -> tuple[Any, Any]:
        return (place, value) if vertical else (value, place)

    factor, heading = unit(panel.y)
    names, bars = panel.places, [line for line in panel.series if not line.is_reference]
    num_bars = Counter(name for line in bars for name, _ in line.points)
    thickness = _BARS / max(num_bars.values())
    num_drawn: Counter[Place] = Counter()
    lowest, highest = 0.0, 0.0
    for line, ink in _with_colors(bars):
        places, means = [], [factor * score.mean for _, score in line.points]
        for name, _ in line.points:
            places.append(names.index(name) + (num_drawn[name] - (num_bars[name] - 1) / 2) * thickness)
            num_drawn[name] += 1
        (axes.bar if vertical else axes.barh)(places, means, 0.9 * thickness, color=ink, label=line.label)
        for place, mean, (_, score) in zip(places, means, line.points, strict=True):
            values, tip = [factor * value for value in score.values], mean
            digits = 1 if factor == 100.0 else 2 if vertical else 3
            text = f"{mean:.{digits}f}"
            if score.deviation is not None:
                deviation = factor * score.deviation
                error: Any = {"yerr" if vertical else "xerr": deviation}
                axes.errorbar(*at(place, mean), **error, fmt="none", color=INK, elinewidth=1.2, capsize=3)
                tip = mean + deviation
                text += "" if vertical else f" \u00b1 {deviation:.{digits}f}"
            if len(values) > 1:
                dots = seed_dots(axes, *at([place] * len(values), values), INK)
                beside = _BESIDE / max(num_bars.values())
                _shift(axes, [dots], *((beside, 0.0) if vertical else (0.0, beside)))
            tip = max([tip, *values])
            if not vertical or len(bars) == 1:  # columns side by side are too narrow
                axes.annotate(
                    text,
                    at(place, tip),
                    xytext=(0, 3) if vertical else (5, 0),
                    textcoords="offset points",
                    ha="center" if vertical else "left",
                    va="bottom" if vertical else "center",
                    fontsize=8.5,
                )
            lowest, highest = min(lowest, mean), max(highest, tip)
    _set_names(axes, names, heading, vertical=vertical)
    (axes.set_ylim if vertical else axes.set_xlim)(lowest, (1.15 if vertical else 1.3) * highest or 1.0)
    for line in panel.series:
        if line.is_reference:
            level = factor * line.points[0][1].mean
            axes.axhline(level, color=INK, linewidth=0.9, linestyle=DASHES, zorder=0.5)
            _note(axes, line.label, (1.0, level), ("axes fraction", "data"), (4, 0))
    has_spread = any(score.deviation is not None for line in bars for _, score in line.points)
    subtitle(axes, "bar: mean, whisker: deviation, dots: seeds" if has_spread else "")
    if any(line.label for line in bars):
        letters = [len(line.label) + 8 for line in bars]  # with the colored patch and a gap
        fit = axes.figure.get_size_inches()[0] * _LETTERS_PER_INCH
        columns = len(bars) if sum(letters) <= fit else max(1, int(fit / max(letters)))
        side = "left" if vertical else "right"
        axes.figure.legend(loc=f"outside lower {side}", frameon=False, fontsize=8.5, ncols=columns)
    return []


def _set_names(axes: Any, names: Sequence[Place], heading: str, *, vertical: bool) -> None:
    texts = [shorten(str(name)) for name in names]
    if vertical:
        axes.set_xticks(range(len(names)), texts)
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_ylabel(heading)
    else:
        axes.set_yticks(range(len(names)), texts, color=INK)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(heading)
    axes.grid(visible=False, axis="x" if vertical else "y")


def draw_differences(axes: Any, panel: Panel) -> list[End]:
    """Draw the differences of each bar from its control and from counting words, with the intervals of the verdicts.

    The label of a series names what its differences are from; without a label, they are from the control.
    """
    factor, _ = unit(panel.y)
    axes.axvline(0.0, color=GRAY, linewidth=1.2)
    low = high = 0.0
    num_at = Counter(name for line in panel.series for name in line.differences)
    is_counted = any(line.label for line in panel.series)
    for line, ink in _with_colors(panel.series):
        for name, difference in line.differences.items():
            delta, place = factor * difference.delta, float(panel.places.index(name))
            place += 0.0 if num_at[name] == 1 else _APART if line.label else -_APART
            interval = difference.interval
            error = 0.0 if interval is None else factor * (interval[1] - interval[0]) / 2
            mark, size = ("s", 5) if line.label else ("o", 6)
            look: Any = {"fmt": mark, "color": ink, "markersize": size, "linewidth": 2, "capsize": 3}
            axes.errorbar(delta, place, xerr=error or None, **look)
            _label(axes, f"{format_difference(difference.delta, panel.y)}  {difference.verdict}", (delta, place), 5)
            low, high = min(low, delta - error), max(high, delta + error)
    margin = 0.45 * (high - low) or 1.0  # room for the text at the outermost dots
    axes.set_xlim(low - margin, high + margin)
    axes.grid(visible=False, axis="y")
    points = " (points)" if factor == 100.0 else ""
    axes.set_xlabel(f"difference{points}" if is_counted else f"difference from control{points}")
    sides = "\u25cf from control, \u25a0 from word counts\n" if is_counted else ""
    subtitle(axes, f"{sides}whisker: the interval that decides the verdict")
    return []


def draw_reliability(axes: Any, panel: Panel) -> list[End]:
    """Draw accuracy against mean confidence for each bin; calibrated probabilities lie on the diagonal."""
    axes.plot([0, 100], [0, 100], color=GRAY, linewidth=1.2, linestyle=DASHES)
    for line, ink in _with_colors(panel.series):
        if line.points:
            xs, ys = zip(*((100 * float(x), 100 * score.mean) for x, score in line.points), strict=True)
            axes.plot(xs, ys, "o-", color=ink, markersize=3.5, linewidth=1.6, label=line.label)
    axes.set(xlabel=panel.x, ylabel=unit(panel.y)[1], xlim=(0, 100), ylim=(0, 100))
    subtitle(axes, panel.note)
    if any(line.points for line in panel.series):
        axes.legend(loc="upper left", frameon=False, fontsize=8.5)
    return []


_DRAW: dict[Kind, Callable[[Any, Panel], list[End]]] = {
    "points": draw_points,
    "curves": draw_curves,
    "loss": draw_loss,
    "bars": draw_bars,
    "columns": partial(draw_bars, vertical=True),
    "differences": draw_differences,
    "reliability": draw_reliability,
}
