"""How well discriminators find replaced tokens: precision and recall, with the base rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.reporting.figures.part_curves import over_seeds, validations
from lmtransfer.reporting.figures.style import (
    MAX_CURVES,
    SavedFigure,
    colour,
    drawing,
    label_ends,
    new_figure,
    save,
    seed_dots,
    shorten,
    subtitle,
    with_count,
)
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.system.units import count_formatter
from lmtransfer.verdicts.spread import Spread

#: A metric over seeds against tokens seen.
Curve = tuple[tuple[float, Spread], ...]

_BASE_RATE = "_base_rate"


@dataclass(frozen=True, slots=True)
class DetectionCurves:
    """One pretraining run with a generator, with all its seeds.

    Attributes:
        label: name of the run.
        precision: share of the tokens marked as replaced that are replaced; no point if none is marked.
        recall: share of the replaced tokens that are marked.
        base_rate: share of all tokens that is replaced, which is the precision of guessing.
    """

    label: str
    precision: Curve
    recall: Curve
    base_rate: Curve


def detection_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure of all runs that logged detection metrics; an empty list if there are none."""
    curves = [
        curve
        for entry in entries
        if entry.is_pretraining and (curve := detection_curves(entry, labels[entry.run.key])) is not None
    ]
    return [draw_detection_curves(curves, folder)] if curves else []


def detection_curves(entry: Entry, label: str) -> DetectionCurves | None:
    """The logged curves of a pretraining run and its seeds; None if there are none."""
    runs = entry.seeds or (entry.run,)
    keys = {key for run in runs for line in run.metrics for key in line if key.startswith("validation/")}
    name = next((key.removesuffix(_BASE_RATE) for key in sorted(keys) if key.endswith(_BASE_RATE)), None)
    if name is None:
        return None
    precision, recall, rate = (
        over_seeds([validations(run, f"{name}{ending}") for run in runs])
        for ending in ("_precision", "_recall", _BASE_RATE)
    )
    return DetectionCurves(label, precision, recall, rate) if recall and rate else None


def draw_detection_curves(
    curves: Sequence[DetectionCurves], folder: Path, *, name: str = "replaced-tokens"
) -> SavedFigure:
    """Draw precision on the left with its base rate as a dashed line, recall on the right, against tokens.

    Args:
        curves: at least one run; the first ``MAX_CURVES`` are drawn.
        folder: folder for the files.
        name: file name without suffix.
    """
    visible = list(curves[:MAX_CURVES])
    title = with_count("Replaced tokens found in held-out text", len(curves))
    with drawing(name):
        figure = new_figure(title, width=9.2, height=3.9)
        left, right = figure.subplots(1, 2, sharey=True)
        ends = []
        for place, of_run in enumerate(visible):
            ink = colour(place)
            for axes, curve in ((left, of_run.precision), (right, of_run.recall)):
                if not curve:
                    continue
                tokens, values = zip(*curve, strict=True)
                means = [100 * value.mean for value in values]
                several = values[0].n > 1
                axes.plot(tokens, means, "-" if several else "o-", color=ink, markersize=3.5, linewidth=1.8)
                for seed in zip(*(value.values for value in values), strict=True) if several else ():
                    seed_dots(axes, tokens, [100 * value for value in seed], ink)
            tokens, rates = zip(*of_run.base_rate, strict=True)
            left.plot(tokens, [100 * rate.mean for rate in rates], color=ink, linewidth=1.2, linestyle=(0, (4, 3)))
            ends.append((100 * of_run.recall[-1][1].mean, shorten(of_run.label, 26), ink))
        left.set_ylabel("precision (%)")
        right.set_ylabel("recall (%)")
        for axes in (left, right):
            axes.set_xlabel("tokens")
            axes.set_xlim(left=0)
            axes.set_ylim(0, 100)
            axes.xaxis.set_major_formatter(count_formatter())
        subtitle(left, "dashed: base rate, the share of all tokens that is replaced")
        figure.canvas.draw()
        label_ends(right, ends)
        return save(figure, folder, name, title)
