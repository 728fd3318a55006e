"""Learning curves of pretraining: the loss against tokens and against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.reporting.figures.style import (
    GREY,
    MAX_CURVES,
    SavedFigure,
    colour,
    counted,
    dotted,
    drawing,
    label_ends,
    new_figure,
    save,
    seed_dots,
    shorten,
    subtitle,
)
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.reference import ReferenceCurve, entropy_of, is_normal, references_of
from lmtransfer.reporting.runs.scores import number
from lmtransfer.system.units import count_formatter, time_unit

#: Highest number of points of a line: more than the figure has pixels only make the file larger.
MAX_POINTS = 500
#: The part of the loss to draw, in order of preference: those that are comparable with a unigram entropy.
_LOSS_PARTS = ("mlm", "lm")
#: Highest number of phase starts that are drawn for one run.
_MAX_CHANGES = 8


@dataclass(frozen=True, slots=True)
class LossCurve:
    """One pretraining run.

    Attributes:
        label: name of the run; the seeds of a run share it.
        tokens: tokens seen at each logged step.
        seconds: training seconds at each logged step.
        loss: training loss at each logged step, nats.
        validation: (tokens, seconds, loss) at each validation.
        plateau: loss of a model that knows only the frequencies of tokens (unigram entropy, nats), or None.
        changes: (tokens, seconds, name of the phase) where a new phase starts.
        references: curves of earlier runs of the same recipe.
    """

    label: str
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    loss: tuple[float, ...]
    validation: tuple[tuple[float, float, float], ...] = ()
    plateau: float | None = None
    changes: tuple[tuple[float, float, str], ...] = ()
    references: tuple[ReferenceCurve, ...] = ()


def loss_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure for each part of the loss, since losses of an LM and of an MLM are not comparable."""
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
            shown_runs, folder, name="pretraining-loss" + ("" if part == "loss" else f"-{part}"), loss_name=part
        )
        for part, shown_runs in curves.items()
    ]


def loss_curve(run: Run, label: str, part: str | None = None) -> LossCurve | None:
    """The loss curve from a run's metrics; None if there is none.

    Args:
        run: a pretraining run, finished or not.
        label: name of the run in the figure.
        part: the part of the loss (``mlm``); None for the total.
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
    known = entropy_of(run) if part in _LOSS_PARTS else None
    references = () if part is None or known is None else tuple(references_of(run, part))
    return LossCurve(label, tokens_, seconds_, losses, tuple(validation), known, _changes(run), references)


def _changes(run: Run) -> tuple[tuple[float, float, str], ...]:
    """Where a new phase of a run starts: at the last logged line of the phase before."""
    found, before = [], None
    for line in run.metrics:
        phase, tokens, seconds = line.get("phase"), number(line.get("tokens")), number(line.get("seconds"))
        if not isinstance(phase, str) or tokens is None or seconds is None:
            continue
        if before is not None and before[2] != phase:
            found.append((before[0], before[1], phase))
        before = (tokens, seconds, phase)
    return tuple(found)


def _loss(line: Mapping[str, Any], part: str | None) -> float | None:
    if part is None:
        return number(line.get("loss"))
    value = number(line.get(f"loss/{part}"))
    return number(line.get(part)) if value is None else value


def draw_loss_curves(
    curves: Sequence[LossCurve], folder: Path, *, name: str = "pretraining-loss", loss_name: str = "loss"
) -> SavedFigure:
    """Draw training and validation loss of pretraining runs, against tokens on the left and against time on the right.

    The seeds of a run share a colour and a label. Each seed has a thin line, and a dot at every validation, or at the
    end of the line if there was no validation.

    Args:
        curves: curves of the runs and their seeds; the first ``MAX_CURVES`` runs are drawn.
        folder: folder for the files.
        name: file name without suffix.
        loss_name: the part of the loss that is drawn.
    """
    runs: dict[str, list[LossCurve]] = {}
    for curve in curves:
        runs.setdefault(curve.label, []).append(curve)
    shown_runs = dict(list(runs.items())[:MAX_CURVES])
    seeds = [seed for of_run in shown_runs.values() for seed in of_run]
    title = f"Pretraining loss ({loss_name}) of {counted(len(shown_runs), len(runs))}"
    with drawing(name):
        figure = new_figure(title, width=9.2, height=3.9)
        left, right = figure.subplots(1, 2, sharey=True)
        longest = max((curve.seconds[-1] for curve in seeds if curve.seconds), default=0.0)
        scale, unit = time_unit(longest)
        for index, of_run in enumerate(shown_runs.values()):
            for seed in of_run:
                _draw_run(left, right, seed, colour(index), scale, is_seed=len(of_run) > 1)
        _draw_plateaus(left, right, seeds)
        _draw_references(left, seeds)
        for index, of_run in enumerate(shown_runs.values()):
            _draw_changes(left, right, of_run[0], colour(index), scale)
        left.set_ylabel(f"{loss_name} (nats)")
        left.set_xlabel("tokens")
        right.set_xlabel(f"training time ({unit})")
        left.xaxis.set_major_formatter(count_formatter())
        for axes in (left, right):
            axes.set_xlim(left=0)
        has_validation, has_seeds = any(seed.validation for seed in seeds), len(seeds) > len(shown_runs)
        marks = "dots: validation" if has_validation else "dots: seeds" if has_seeds else ""
        of_seeds = "of each seed" if has_seeds and has_validation else ""
        subtitle(left, ", ".join(filter(None, ("line: training", marks, of_seeds))))
        figure.canvas.draw()
        label_ends(right, [_run_end(label, of_run, colour(i)) for i, (label, of_run) in enumerate(shown_runs.items())])
        notes = _notes_of(shown_runs)
        return save(figure, folder, name, " ".join([f"{title}.", *notes]) if notes else title)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """A centred moving average of the same length that ignores values that are not finite.

    The window grows at the start, where losses fall fast, and is one-sided at the end, so that the last value is as
    smooth as the others.
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
    """Draw one run, or one seed of a run, against tokens on the left and time on the right."""
    for axes, where, divisor in ((left, curve.tokens, 1.0), (right, curve.seconds, scale)):
        x = np.asarray(where, dtype=float) / divisor
        end = _draw_noisy(axes, x, np.asarray(curve.loss, dtype=float), ink, is_seed=is_seed)
        if is_seed and not curve.validation and end is not None:
            seed_dots(axes, [x[-1]], [end], ink)
    if curve.validation:
        tokens, seconds, losses = np.asarray(curve.validation, dtype=float).T
        for axes, x in ((left, tokens), (right, seconds / scale)):
            if is_seed:
                some = dotted(len(x))
                seed_dots(axes, x[some], losses[some], ink)
            else:
                axes.plot(x, losses, "o", color=ink, markersize=4.5, markeredgecolor="white", zorder=4)


def _draw_noisy(axes: Any, x: np.ndarray, y: np.ndarray, ink: str, *, is_seed: bool) -> float | None:
    """Draw a smoothed line, with the raw values behind it if it is not a seed; return the last value of the line."""
    if len(x) == 0:
        return None
    stride = max(1, len(x) // MAX_POINTS)
    window = max(1, len(x) // 30)
    if window > 1 and not is_seed:
        axes.plot(x[::stride], y[::stride], color=ink, linewidth=0.6, alpha=0.22)
    smooth = smoothed(y, window)
    axes.plot(x[::stride], smooth[::stride], color=ink, linewidth=1.0 if is_seed else 1.8)
    return float(smooth[-1])


def _draw_references(left: Any, curves: Sequence[LossCurve]) -> None:
    """Draw the curves of earlier runs in grey, moved to the unigram entropy of the run's text."""
    known: dict[int, tuple[ReferenceCurve, float]] = {}
    for curve in curves:
        if curve.plateau is not None:
            known |= {id(reference): (reference, curve.plateau) for reference in curve.references}
    longest = max((curve.tokens[-1] for curve in curves), default=0.0)
    for reference, plateau in known.values():
        x, y = np.asarray(reference.tokens), np.asarray(reference.loss) + plateau - reference.entropy
        left.plot(x[x <= longest], y[x <= longest], color=GREY, linewidth=0.9, alpha=0.6, zorder=0.5)


def _notes_of(runs: Mapping[str, Sequence[LossCurve]]) -> list[str]:
    """For each run with reference curves, whether its loss is normal."""
    notes = []
    for label, seeds in runs.items():
        curve = seeds[0]
        losses = smoothed(np.asarray(curve.loss, dtype=float), max(1, len(curve.loss) // 30))
        is_usual = is_normal(curve.references, tokens=curve.tokens[-1], loss=float(losses[-1]), entropy=curve.plateau)
        notes += [f"{label}: {is_usual}; their curves are grey." if is_usual else ""]
    return [sentence for sentence in notes if sentence]


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


def _draw_changes(left: Any, right: Any, curve: LossCurve, ink: str, scale: float) -> None:
    """Draw a thin line where a phase starts, with its name."""
    for tokens, seconds, name in curve.changes[:_MAX_CHANGES]:
        for axes, x in ((left, tokens), (right, seconds / scale)):
            axes.axvline(x, color=ink, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        left.annotate(
            f"phase {shorten(name, 16)}",
            xy=(tokens, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            va="top",
            color=ink,
            fontsize=8,
        )


def _run_end(label: str, seeds: Sequence[LossCurve], ink: str) -> tuple[float, str, str]:
    """Input of ``label_ends``: the mean final height of a run's seeds, its label, its colour."""
    several = f" ({len(seeds)} seeds)" if len(seeds) > 1 else ""
    return float(np.mean([_end(seed) for seed in seeds])), shorten(label, 26) + several, ink


def _end(curve: LossCurve) -> float:
    if curve.validation:
        return curve.validation[-1][2]
    finite = [value for value in curve.loss if np.isfinite(value)]
    return finite[-1] if finite else 0.0
