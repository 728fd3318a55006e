"""What searching for a learning rate was worth: the score expected of the best of so many tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.render.rows import group_name, run_name
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.scores import higher_is_better, number
from lmtransfer.verdicts.expected_best import expected_best
from lmtransfer.verdicts.spread import spread


def search_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure a run that chose among three learning rates or more, with its control in grey."""
    figures: list[SavedFigure] = []
    for entry in entries:
        metric = entry.metric or ""
        series: list[Series] = []
        for arm, is_control in (("pretrained", False), ("control", True)):
            tried = list(tried_rates(entry.run, arm).values())
            if len(tried) > 2:
                best = expected_best(tried, higher_is_better=higher_is_better(metric, entry.run.result))
                points = tuple((float(k), spread((value,))) for k, value in enumerate(best, start=1))
                series.append(Series("control" if is_control else run_name(entry), points, is_control=is_control))
        if series:
            figures.append(
                draw_points(
                    series,
                    folder,
                    name=f"search-{len(figures) + 1}",
                    title=f"{group_name(entry)}: expected best held-out {metric} of {run_name(entry)}",
                    key="learning rates tried",
                    metric=metric,
                    counts=True,
                )
            )
    return figures


def tried_rates(run: Run, arm: str) -> dict[float, float]:
    """The score of each learning rate on the examples to choose by, in the mean over seeds; none where it is damaged.

    Args:
        run: of a task.
        arm: "pretrained" or "control".
    """
    tries = run.result.get("learning_rate_tries")
    found: dict[float, list[float]] = {}
    for one in tries if isinstance(tries, list) else []:
        if isinstance(one, Mapping) and one.get("arm") == arm:
            rate, score = number(one.get("learning_rate")), number(one.get("score"))
            if rate is not None and score is not None:
                found.setdefault(rate, []).append(score)
    return {rate: fmean(scores) for rate, scores in sorted(found.items())}
