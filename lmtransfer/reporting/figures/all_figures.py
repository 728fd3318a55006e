"""All figures of a report: learning curves, comparisons with the control, and curves over varied settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.reporting.figures.bars import comparison_figures, language_figures
from lmtransfer.reporting.figures.detection_curves import detection_figures
from lmtransfer.reporting.figures.layer_bars import layer_figures
from lmtransfer.reporting.figures.loss_against import label_figures, loss_against_figures, search_figures, sweep_figures
from lmtransfer.reporting.figures.loss_curves import loss_figures
from lmtransfer.reporting.figures.metric_curves import metric_figures, revision_figures
from lmtransfer.reporting.figures.part_curves import part_figures
from lmtransfer.reporting.figures.pretraining_settings import source_figures
from lmtransfer.reporting.figures.reliability import reliability_figures
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.entry import Entry, distinct_names
from lmtransfer.reporting.runs.sweeps import Sweep, value_text


def draw_figures(entries: Sequence[Entry], sweeps: Sequence[Sweep], folder: Path) -> list[SavedFigure]:
    """Draw all figures for which the runs have numbers, as SVG and PNG.

    Args:
        entries: entries of the report.
        sweeps: sweeps of the report.
        folder: folder for the files; made if needed.
    """
    labels = distinct_names(entries)
    figures = comparison_figures(entries, folder) + label_figures(entries, folder)
    figures += source_figures(entries, folder) + revision_figures(entries, folder)
    figures += layer_figures(entries, labels, folder) + sweep_figures(sweeps, folder)
    figures += language_figures(entries, labels, folder) + reliability_figures(entries, labels, folder)
    labels |= _point_labels(sweeps)
    figures += loss_against_figures(entries, folder) + search_figures(entries, folder)
    figures += part_figures([(entry, labels[entry.run.key]) for entry in entries if entry.is_pretraining], folder)
    figures += detection_figures(entries, labels, folder)
    return figures + loss_figures(entries, labels, folder) + metric_figures(entries, labels, folder)


def _point_labels(sweeps: Sequence[Sweep]) -> dict[str, str]:
    """Labels of the points of sweeps, such as ``mask_prob=0.15``."""
    labels: dict[str, str] = {}
    for sweep in sweeps:
        for point in sweep.points:
            values = zip(sweep.keys, point.values, strict=True)
            label = " ".join(f"{key.rsplit('.', 1)[-1]}={value_text(value)}" for key, value in values)
            labels |= {entry.run.key: label for entry in point.entries}
    return labels
