"""Scores and differences as text and as cells, for the tables of all commands."""

from __future__ import annotations

from collections.abc import Mapping

from lmtransfer.reporting.table import PLUS_MINUS, Cell, mark_of
from lmtransfer.reporting.verdict_text import interval_text, verdict_text
from lmtransfer.system.units import format_difference, format_metric, in_percent
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread


def metric_heading(metric: str, *, of_pretraining: bool = False) -> str:
    """Return the metric's name with its unit; pretraining losses are named as validation losses."""
    if of_pretraining and metric:
        return f"validation {metric}"
    return f"{metric} (%)" if in_percent(metric) else metric


def score_text(score: Spread | None, metric: str) -> str:
    """Format mean and deviation in the metric's displayed unit: ``69.6 +- 0.5``; no deviation for a single seed."""
    if score is None:
        return ""
    text = format_metric(score.mean, metric)
    return text if score.deviation is None else f"{text} {PLUS_MINUS} {format_metric(score.deviation, metric)}"


def difference_text(difference: Difference | None, metric: str) -> str:
    """Format a difference with its corrected interval: ``+2.8 (+1.2 to +4.4)``."""
    if difference is None:
        return ""
    text, interval = format_difference(difference.delta, metric), interval_text(difference, metric)
    return f"{text} ({interval})" if interval else text


def score_cell(score: Spread | None, metric: str) -> Cell:
    """Build the cell of a score."""
    return Cell(score_text(score, metric), sort=None if score is None else score.mean)


def metrics_cell(scores: Mapping[str, Spread]) -> Cell:
    """Build the cell of the other metrics, one line each with its unit: ``macro_f1 (%) 69.6 +- 0.5``."""
    return Cell.of_lines([f"{metric_heading(metric)} {score_text(score, metric)}" for metric, score in scores.items()])


def difference_cells(difference: Difference | None, metric: str) -> dict[str, Cell]:
    """Build the cells of a difference, its corrected interval, and its verdict with its mark."""
    if difference is None:
        return {}
    return {
        "difference": Cell(format_difference(difference.delta, metric), sort=difference.delta),
        "interval": Cell(interval_text(difference, metric)),
        "verdict": Cell(verdict_text(difference, metric), mark=mark_of(difference)),
    }
