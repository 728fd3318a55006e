"""Reliability diagrams: accuracy against confidence, as trained and after temperature scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtransfer.reporting.figures.style import (
    GREY,
    MAX_CURVES,
    SavedFigure,
    colour,
    drawing,
    new_figure,
    save,
    shorten,
    slug,
    subtitle,
    with_count,
)
from lmtransfer.reporting.runs.calibration import ShownCalibration, read_calibration
from lmtransfer.reporting.runs.entry import Entry

#: Label and calibration of a run.
Labelled = tuple[str, ShownCalibration]


def reliability_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure for each task, with the runs that measured their calibration."""
    groups: dict[str, list[Labelled]] = {}
    for entry in entries:
        found = read_calibration(entry.run.result)
        if found is not None:
            groups.setdefault(entry.group, []).append((labels[entry.run.key], found))
    return [
        draw_reliability(drawn, folder, name=f"reliability-{slug(group)}", title=f"{group}: reliability")
        for group, drawn in groups.items()
    ]


def draw_reliability(runs: Sequence[Labelled], folder: Path, *, name: str, title: str) -> SavedFigure:
    """Draw the accuracy of each bin against its mean confidence; on the diagonal the probabilities are right.

    Args:
        runs: at least one run; the first ``MAX_CURVES`` are drawn.
        folder: folder for the files.
        name: file name without suffix.
        title: title of the figure.
    """
    title = with_count(title, len(runs))
    with drawing(name):
        figure = new_figure(title, width=9.2, height=4.4)
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes in (left, right):
            axes.plot([0, 100], [0, 100], color=GREY, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.set_xlabel("confidence (%)")
        for place, (label, found) in enumerate(runs[:MAX_CURVES]):
            for axes, part in ((left, found.plain), (right, found.scaled)):
                if part is None or not part.points:
                    continue
                xs, ys = ([100 * value for value in values] for values in zip(*part.points, strict=True))
                caption = f"{shorten(label, 26)}, ECE {100 * part.error:.1f}"
                axes.plot(xs, ys, "o-", color=colour(place), markersize=3.5, linewidth=1.6, label=caption)
        left.set_ylabel("accuracy (%)")
        left.set_xlim(0, 100)
        left.set_ylim(0, 100)
        subtitle(left, "as trained; dashed: as often right as the probability says")
        subtitle(right, "with a temperature fitted on other examples")
        for axes in (left, right):
            if axes.get_legend_handles_labels()[0]:
                axes.legend(loc="upper left", frameon=False, fontsize=8.5)
        return save(figure, folder, name, title)
