"""The gain from searching for a learning rate: the expected score of the best of k tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.learning_rates import tried_rates
from lmtransfer.reporting.runs.scores import higher_is_better
from lmtransfer.verdicts.expected_best import expected_best
from lmtransfer.verdicts.spread import Spread, spread


def search_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each run that tried at least three learning rates, with its control in grey."""
    figures: list[SavedFigure] = []
    for entry in entries:
        metric = entry.metric or ""
        series: list[Series] = []
        for condition, is_control in (("pretrained", False), ("control", True)):
            tried = tried_rates(entry.run, condition)
            if len(tried) > 2:
                best = _best_of(tried, higher_is_better=higher_is_better(metric, entry.run.result))
                points = tuple((float(k), score) for k, score in enumerate(best, start=1))
                series.append(Series("control" if is_control else entry.name, points, is_control=is_control))
        if series:
            figures.append(
                draw_points(
                    series,
                    folder,
                    name=f"search-{len(figures) + 1}",
                    title=f"{entry.group}: expected best held-out {metric} of {entry.name}",
                    key="learning rates tried",
                    metric=metric,
                    counts=True,
                )
            )
    return figures


def _best_of(tried: Mapping[float, Spread], *, higher_is_better: bool) -> list[Spread]:
    """The expected score of the best of k rates, for each seed; a rate is chosen by its mean over seeds."""
    rates = list(tried.values())
    means = [rate.mean for rate in rates]
    seeds = zip(*(rate.values for rate in rates), strict=True)
    best = [expected_best(means, scores=scores, higher_is_better=higher_is_better) for scores in seeds]
    return [spread(values) for values in zip(*best, strict=True)]
