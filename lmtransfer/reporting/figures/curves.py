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
    seed_dots,
    shorten,
    subtitle,
)
from lmtransfer.reporting.units import count_formatter, in_percent, time_unit

#: More curves than this in one figure tell nothing apart; the rest is left out, and the caption says so.
MAX_CURVES = 7
#: More points than the figure has pixels only make the file large.
MAX_POINTS = 500
#: More dots than this on the line of a seed hide it.
_MOST_DOTS = 25


@dataclass(frozen=True, slots=True)
class LossCurve:
    """One pretraining run.

    Attributes:
        label: the run's name; the seeds of one run share it.
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

    The seeds of a run have one colour and one label, a thin line each, and a dot each at every validation, or at the
    end of the line where there was none.

    Args:
        curves: of the runs and their seeds; the first ``MAX_CURVES`` runs are drawn.
        folder: where the files go.
        name: file name without suffix.
        loss_name: the part of the loss that is drawn.
    """
    runs: dict[str, list[LossCurve]] = {}
    for curve in curves:
        runs.setdefault(curve.label, []).append(curve)
    drawn = dict(list(runs.items())[:MAX_CURVES])
    seeds = [seed for of_run in drawn.values() for seed in of_run]
    title = f"Pretraining loss ({loss_name}) of {_counted(len(drawn), len(runs))}"
    with drawing(name):
        figure = new_figure(title, width=9.2, height=3.9)
        left, right = figure.subplots(1, 2, sharey=True)
        longest = max((curve.seconds[-1] for curve in seeds if curve.seconds), default=0.0)
        scale, unit = time_unit(longest)
        for index, of_run in enumerate(drawn.values()):
            for seed in of_run:
                _draw_run(left, right, seed, colour(index), scale, is_seed=len(of_run) > 1)
        _draw_plateaus(left, right, seeds)
        left.set_ylabel(f"{loss_name} (nats)")
        left.set_xlabel("tokens")
        right.set_xlabel(f"training time ({unit})")
        left.xaxis.set_major_formatter(count_formatter())
        for axes in (left, right):
            axes.set_xlim(left=0)
        has_validation, has_seeds = any(seed.validation for seed in seeds), len(seeds) > len(drawn)
        marks = "dots: validation" if has_validation else "dots: seeds" if has_seeds else ""
        of_seeds = "of each seed" if has_seeds and has_validation else ""
        subtitle(left, ", ".join(filter(None, ("line: training", marks, of_seeds))))
        figure.canvas.draw()
        label_ends(right, [_run_end(label, of_run, colour(i)) for i, (label, of_run) in enumerate(drawn.items())])
        return save(figure, folder, name, title)


def draw_metric_curves(
    curves: Sequence[MetricCurve], folder: Path, *, name: str, title: str, control: Sequence[str] = ()
) -> SavedFigure:
    """A development metric against steps: the mean over seeds as a line, single seeds behind it as lines with dots.

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
                    some = _some(len(seed))
                    seed_dots(axes, np.asarray(curve.steps)[some], seed[some], ink, size=2.8)
            mean = values.mean(0)
            marks = "o-" if len(values) == 1 else "-"  # with several seeds a dot is a seed
            axes.plot(curve.steps, mean, marks, color=ink, markersize=3.5, linewidth=1.8, markeredgecolor="white")
            ends.append((float(mean[-1]), shorten(curve.label, 26), ink))
        axes.set_xlabel("optimiser steps")
        axes.set_ylabel(f"{metric} (%)" if factor == 100.0 else metric)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(count_formatter())
        if any(len(curve.values) > 1 for curve in drawn):
            subtitle(axes, "thick: mean over seeds, thin lines and dots: each seed")
        figure.canvas.draw()
        label_ends(axes, ends)
        return save(figure, folder, name, title)


def _some(num: int) -> np.ndarray:
    """Which of so many measurements have a dot for each seed: the last, and at most ``_MOST_DOTS`` at equal steps."""
    return np.arange(num - 1, -1, -max(1, -(-num // _MOST_DOTS)))[::-1]


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


def _draw_run(left: Any, right: Any, curve: LossCurve, ink: str, scale: float, *, is_seed: bool) -> None:
    """One run, or one seed of a run, against tokens on the left and time on the right."""
    for axes, where, divisor in ((left, curve.tokens, 1.0), (right, curve.seconds, scale)):
        x = np.asarray(where, dtype=float) / divisor
        end = _draw_noisy(axes, x, np.asarray(curve.loss, dtype=float), ink, is_seed=is_seed)
        if is_seed and not curve.validation and end is not None:
            seed_dots(axes, [x[-1]], [end], ink)
    if curve.validation:
        tokens, seconds, losses = np.asarray(curve.validation, dtype=float).T
        for axes, x in ((left, tokens), (right, seconds / scale)):
            if is_seed:
                some = _some(len(x))
                seed_dots(axes, x[some], losses[some], ink)
            else:
                axes.plot(x, losses, "o", color=ink, markersize=4.5, markeredgecolor="white", zorder=4)


def _draw_noisy(axes: Any, x: np.ndarray, y: np.ndarray, ink: str, *, is_seed: bool) -> float | None:
    """A smooth line, with what was logged behind it where it is the only one of its run; the last value of the line."""
    if len(x) == 0:
        return None
    stride = max(1, len(x) // MAX_POINTS)
    window = max(1, len(x) // 30)
    if window > 1 and not is_seed:
        axes.plot(x[::stride], y[::stride], color=ink, linewidth=0.6, alpha=0.22)
    smooth = smoothed(y, window)
    axes.plot(x[::stride], smooth[::stride], color=ink, linewidth=1.0 if is_seed else 1.8)
    return float(smooth[-1])


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


def _run_end(label: str, seeds: Sequence[LossCurve], ink: str) -> tuple[float, str, str]:
    """For ``label_ends``: the mean height at which the seeds of a run end, its label, its colour."""
    several = f" ({len(seeds)} seeds)" if len(seeds) > 1 else ""
    return float(np.mean([_end(seed) for seed in seeds])), shorten(label, 26) + several, ink


def _end(curve: LossCurve) -> float:
    if curve.validation:
        return curve.validation[-1][2]
    finite = [value for value in curve.loss if np.isfinite(value)]
    return finite[-1] if finite else 0.0


def _counted(drawn: int, runs: int) -> str:
    if drawn < runs:
        return f"the first {drawn} of {runs} runs"
    return "1 run" if drawn == 1 else f"{drawn} runs"
