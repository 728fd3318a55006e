"""Learning curves: the pretraining loss against tokens and time, a development metric against steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.reporting.figures.style import (
    GREY,
    SavedFigure,
    colour,
    drawing,
    label_ends,
    new_figure,
    save,
    shorten,
    subtitle,
)
from lmtransfer.reporting.units import count_formatter, in_percent, time_unit

#: More curves than this in one figure tell nothing apart; the rest is left out, and the caption says so.
MAX_CURVES = 7
#: More points than the figure has pixels only make the file large.
MAX_POINTS = 500


@dataclass(frozen=True, slots=True)
class LossCurve:
    """One pretraining run.

    Attributes:
        label: the run's name.
        tokens: tokens seen at each logged step.
        seconds: training seconds at each logged step.
        loss: training loss at each logged step, nats.
        validation: (tokens, seconds, loss) at each validation.
        plateau: loss of a model that knows the frequencies of tokens only (unigram entropy, nats), or None.
    """

    label: str
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    loss: tuple[float, ...]
    validation: tuple[tuple[float, float, float], ...] = ()
    plateau: float | None = None


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A development metric while training on a task.

    Attributes:
        label: the run's name.
        steps: optimiser steps at which it was measured.
        values: one tuple a seed, each of the length of ``steps``.
        metric: the metric's name.
    """

    label: str
    steps: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    metric: str


def draw_loss_curves(
    curves: Sequence[LossCurve], folder: Path, *, name: str = "pretraining-loss", loss_name: str = "loss"
) -> SavedFigure:
    """Training and validation loss of pretraining runs, against tokens on the left and against time on the right.

    Args:
        curves: the runs; the first ``MAX_CURVES`` are drawn.
        folder: where the files go.
        name: file name without suffix.
        loss_name: the part of the loss that is drawn.
    """
    drawn = list(curves[:MAX_CURVES])
    title = f"Pretraining loss ({loss_name}) of {_counted(drawn, curves)}"
    with drawing(name):
        figure = new_figure(title, width=9.2, height=3.9)
        left, right = figure.subplots(1, 2, sharey=True)
        longest = max((curve.seconds[-1] for curve in drawn if curve.seconds), default=0.0)
        scale, unit = time_unit(longest)
        for index, curve in enumerate(drawn):
            ink = colour(index)
            for axes, where, divisor in ((left, curve.tokens, 1.0), (right, curve.seconds, scale)):
                x = np.asarray(where, dtype=float) / divisor
                _draw_noisy(axes, x, np.asarray(curve.loss, dtype=float), ink)
            if curve.validation:
                tokens, seconds, losses = np.asarray(curve.validation, dtype=float).T
                for axes, x in ((left, tokens), (right, seconds / scale)):
                    axes.plot(x, losses, "o", color=ink, markersize=4.5, markeredgecolor="white", zorder=4)
        _draw_plateaus(left, right, drawn)
        left.set_ylabel(f"{loss_name} (nats)")
        left.set_xlabel("tokens")
        right.set_xlabel(f"training time ({unit})")
        left.xaxis.set_major_formatter(count_formatter())
        for axes in (left, right):
            axes.set_xlim(left=0)
        has_validation = any(curve.validation for curve in drawn)
        subtitle(left, "line: training" + (", dots: validation" if has_validation else ""))
        figure.canvas.draw()
        label_ends(right, [(_end(curve), shorten(curve.label, 26), colour(i)) for i, curve in enumerate(drawn)])
        return save(figure, folder, name, title)


def draw_metric_curves(
    curves: Sequence[MetricCurve], folder: Path, *, name: str, title: str, control: Sequence[str] = ()
) -> SavedFigure:
    """A development metric against steps: the mean over seeds as a line, single seeds behind it.

    Args:
        curves: at least one run; the first ``MAX_CURVES`` are drawn.
        folder: where the files go.
        name: file name without suffix.
        title: what is shown.
        control: labels of the runs without pretraining, drawn grey.
    """
    drawn = list(curves[:MAX_CURVES])
    metric = drawn[0].metric
    factor = 100.0 if in_percent(metric) else 1.0
    with drawing(name):
        figure = new_figure(title, width=7.2, height=3.7)
        axes = figure.subplots()
        ends, inks = [], iter(range(len(drawn)))
        for curve in drawn:
            ink = GREY if curve.label in control else colour(next(inks))
            values = factor * np.asarray(curve.values, dtype=float)
            if len(values) > 1:
                for seed in values:
                    axes.plot(curve.steps, seed, color=ink, linewidth=0.7, alpha=0.35)
            mean = values.mean(0)
            axes.plot(curve.steps, mean, "o-", color=ink, markersize=3.5, linewidth=1.8, markeredgecolor="white")
            ends.append((float(mean[-1]), shorten(curve.label, 26), ink))
        axes.set_xlabel("optimiser steps")
        axes.set_ylabel(f"{metric} (%)" if factor == 100.0 else metric)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(count_formatter())
        if any(len(curve.values) > 1 for curve in drawn):
            subtitle(axes, "thick: mean over seeds, thin: each seed")
        figure.canvas.draw()
        label_ends(axes, ends)
        return save(figure, folder, name, title)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """A centred moving mean of the same length that leaves out what is not finite.

    The window grows at the start, where losses fall steeply, and becomes one-sided at the end, so that the last
    value is as smooth as the others.
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    reach = np.minimum(window // 2, places)
    low, high = places - reach, np.minimum(places + reach + 1, len(values))
    total = counts[high] - counts[low]
    return np.where(total > 0, (sums[high] - sums[low]) / np.maximum(total, 1), np.nan)


def _draw_noisy(axes: Any, x: np.ndarray, y: np.ndarray, ink: str) -> None:
    if len(x) == 0:
        return
    stride = max(1, len(x) // MAX_POINTS)
    window = max(1, len(x) // 30)
    if window > 1:
        axes.plot(x[::stride], y[::stride], color=ink, linewidth=0.6, alpha=0.22)
    axes.plot(x[::stride], smoothed(y, window)[::stride], color=ink, linewidth=1.8)


def _draw_plateaus(left: Any, right: Any, curves: Sequence[LossCurve]) -> None:
    plateaus = sorted({round(curve.plateau, 2) for curve in curves if curve.plateau is not None})
    for plateau in plateaus:
        for axes in (left, right):
            axes.axhline(plateau, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        left.annotate(
            f"unigram entropy {plateau:.2f}",
            xy=(1.0, plateau),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            color="#666666",
            fontsize=8,
        )


def _end(curve: LossCurve) -> float:
    if curve.validation:
        return curve.validation[-1][2]
    finite = [value for value in curve.loss if np.isfinite(value)]
    return finite[-1] if finite else 0.0


def _counted(drawn: Sequence[LossCurve], curves: Sequence[LossCurve]) -> str:
    if len(drawn) < len(curves):
        return f"the first {len(drawn)} of {len(curves)} runs"
    return "1 run" if len(drawn) == 1 else f"{len(drawn)} runs"
