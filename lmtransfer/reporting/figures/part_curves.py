"""The validation loss of each part of a mixture of corpora (such as a language), and the share of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lmtransfer.reporting.figures.style import (
    GREY,
    INK,
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
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import number
from lmtransfer.system.units import count_formatter, shown
from lmtransfer.verdicts.spread import Spread, spread

_PREFIX = "validation/"
#: The shares shown for each part: key in ``result.json``, heading.
_SHARES = (
    ("share", "of the text"),
    ("sampled", "of the sampled text"),
    ("own", "of the vocabulary (pieces most frequent there)"),
)


@dataclass(frozen=True, slots=True)
class PartCurves:
    """One pretraining run on a mixture, with all its seeds.

    Attributes:
        loss: name of the loss.
        curves: (tokens seen, loss over seeds) at each validation, by part.
        shares: for each part the known values of ``share``, ``sampled`` and ``own``.
    """

    loss: str
    curves: Mapping[str, tuple[tuple[float, Spread], ...]]
    shares: Mapping[str, Mapping[str, float]]


def part_curves(run: Run, seeds: Sequence[Run] = ()) -> PartCurves | None:
    """The logged parts of a run, for its first named loss, or else for the total; None for a single corpus.

    Args:
        run: a pretraining run.
        seeds: the runs of its seeds, if it has several; only validations that all of them have are used.
    """
    runs = seeds or (run,)
    names = list(
        dict.fromkeys(
            key for one in runs for line in one.metrics for key in line if key.startswith(_PREFIX) and "/" in key[11:]
        )
    )
    losses = list(dict.fromkeys(name.removeprefix(_PREFIX).partition("/")[0] for name in names))
    losses = [loss for loss in losses if not loss.endswith("_accuracy")]
    if not losses:
        return None
    loss = next((loss for loss in losses if loss != "loss"), "loss")
    curves = {}
    for name in names:
        of_loss, _, part = name.removeprefix(_PREFIX).partition("/")
        points = over_seeds([validations(one, name) for one in runs])
        if of_loss == loss and points:
            curves[part] = points
    if not curves:
        return None
    result_parts = run.result.get("parts")
    shares = {
        part: {key: value for key, _ in _SHARES if (value := number(node.get(key))) is not None}
        for part, node in (result_parts.items() if isinstance(result_parts, Mapping) else ())
        if isinstance(node, Mapping)
    }
    return PartCurves(loss, curves, shares)


def validations(run: Run, name: str) -> dict[object, tuple[float, float]]:
    """Tokens seen and a metric (``validation/mlm``) at each validation.

    Returns:
        By step, or by tokens if no step was logged.
    """
    found: dict[object, tuple[float, float]] = {}
    for line in run.metrics:
        tokens, value = number(line.get("tokens")), number(line.get(name))
        if tokens is not None and value is not None:
            step = number(line.get("step"))
            found[f"{tokens} tokens" if step is None else step] = (tokens, value)
    return found


def over_seeds(logged: Sequence[Mapping[object, tuple[float, float]]]) -> tuple[tuple[float, Spread], ...]:
    """The validations common to all seeds that have any, with mean tokens, since seeds fill their steps differently."""
    seeds = [of_seed for of_seed in logged if of_seed]
    everywhere = [at for at in seeds[0] if all(at in of_seed for of_seed in seeds)] if seeds else []
    return tuple(
        (fmean(of_seed[at][0] for of_seed in seeds), spread([of_seed[at][1] for of_seed in seeds])) for at in everywhere
    )


def part_figures(entries: Sequence[tuple[Entry, str]], folder: Path) -> list[SavedFigure]:
    """One figure for each run that was pretrained on a mixture.

    Args:
        entries: pretraining runs with their names.
        folder: folder for the files.
    """
    figures: list[SavedFigure] = []
    for entry, label in entries:
        found = part_curves(entry.run, entry.seeds)
        if found is not None:
            name = f"parts-{len(figures) + 1}"
            figures.append(draw_part_curves(found, folder, name=name, title=f"{label}: loss on each part"))
    return figures


def draw_part_curves(found: PartCurves, folder: Path, *, name: str, title: str) -> SavedFigure:
    """Draw each part's mean loss against tokens, with a dot for each seed, on the left; the shares on the right."""
    parts = list(found.curves)
    with drawing(name):
        figure = new_figure(title, width=9.2 if found.shares else 6.4, height=3.9)
        if found.shares:
            left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        else:
            left = figure.subplots()
        ends = []
        for place, part in enumerate(parts):
            tokens, losses = zip(*found.curves[part], strict=True)
            means = [loss.mean for loss in losses]
            several = losses[0].n > 1
            left.plot(tokens, means, "-" if several else "o-", color=colour(place), markersize=3.5, linewidth=1.8)
            for values in zip(*(loss.values for loss in losses), strict=True) if several else ():
                seed_dots(left, tokens, values, colour(place))
            ends.append((means[-1], f"{shorten(part, 18)}  {shown(means[-1], found.loss)}", colour(place)))
        if any(points[0][1].n > 1 for points in found.curves.values()):
            subtitle(left, "line: mean over seeds, dots: seeds")
        left.set_xlabel("tokens")
        left.set_ylabel(f"validation {found.loss} (nats)")
        left.xaxis.set_major_formatter(count_formatter())
        left.set_xlim(left=0)
        if found.shares:
            _draw_shares(right, parts, found.shares)
            figure.legend(loc="outside lower right", frameon=False, fontsize=8, ncols=3)
        figure.canvas.draw()
        label_ends(left, ends)
        return save(figure, folder, name, title)


def _draw_shares(axes: Any, parts: Sequence[str], shares: Mapping[str, Mapping[str, float]]) -> None:
    fills = (GREY, "#B9D6EA", INK)
    height = 0.26
    for place, ((key, heading), fill) in enumerate(zip(_SHARES, fills, strict=True)):
        ys = [row + (place - 1) * height for row in range(len(parts))]
        values = [100 * shares.get(part, {}).get(key, 0.0) for part in parts]
        axes.barh(ys, values, height=0.9 * height, color=fill, label=heading)
        for y, value in zip(ys, values, strict=True):
            axes.annotate(
                f"{value:.1f}", (value, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5
            )
    axes.set_yticks(range(len(parts)), [shorten(part, 18) for part in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share (%)")
    axes.margins(x=0.14)
