"""Which figures a report has: learning curves, comparisons with the control, and curves over what was varied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.reporting.figures.bars import comparison_figures
from lmtransfer.reporting.figures.layer_bars import layer_figures
from lmtransfer.reporting.figures.loss_against import loss_against_figures
from lmtransfer.reporting.figures.loss_curves import loss_figures
from lmtransfer.reporting.figures.metric_curves import metric_figures
from lmtransfer.reporting.figures.part_curves import part_figures
from lmtransfer.reporting.figures.pretraining_settings import source_figures
from lmtransfer.reporting.figures.score_against import label_figures, sweep_figures
from lmtransfer.reporting.figures.searches import search_figures
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.sweeps import Sweep, value_text


def draw_figures(entries: Sequence[Entry], sweeps: Sequence[Sweep], folder: Path) -> list[SavedFigure]:
    """All figures that the runs have numbers for, as SVG and PNG.

    Args:
        entries: of the report.
        sweeps: of the report.
        folder: where the files go; it is made if need be.
    """
    figures = comparison_figures(entries, folder) + label_figures(entries, folder)
    figures += source_figures(entries, folder) + layer_figures(entries, folder)
    figures += sweep_figures(sweeps, folder)
    labels = {entry.run.key: entry.name for entry in entries} | _point_labels(sweeps)
    figures += loss_against_figures(entries, folder) + search_figures(entries, folder)
    figures += part_figures([(entry, labels[entry.run.key]) for entry in entries if entry.is_pretraining], folder)
    return figures + loss_figures(entries, labels, folder) + metric_figures(entries, labels, folder)


def _point_labels(sweeps: Sequence[Sweep]) -> dict[str, str]:
    """What the points of sweeps are called: ``mask_prob=0.15``."""
    labels: dict[str, str] = {}
    for sweep in sweeps:
        for point in sweep.points:
            values = zip(sweep.keys, point.values, strict=True)
            label = " ".join(f"{key.rsplit('.', 1)[-1]}={value_text(value)}" for key, value in values)
            labels |= {entry.run.key: label for entry in point.entries}
    return labels
