"""Comparison of several conditions on the same task: the score of each, and its difference from the control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lmtransfer.reporting.figures.style import (
    GREY,
    INK,
    MAX_CURVES,
    PALETTE,
    SavedFigure,
    colour,
    drawing,
    new_figure,
    save,
    seed_dots,
    shorten,
    slug,
    subtitle,
    with_count,
)
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.languages import scores_in_languages
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.system.units import in_percent, shown, shown_difference
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

#: Label of a run, whether it is a control, and its score by language.
Scored = tuple[str, bool, Mapping[str, float]]

BarKind = Literal["majority", "baseline", "control", "frozen", "finetuned"]
_FILL: dict[BarKind, str] = {
    "majority": "#D9D9D9",
    "baseline": "#BDBDBD",
    "control": GREY,
    "frozen": PALETTE[4],
    "finetuned": PALETTE[0],
}


def language_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure for each task with scores by language: all its runs and their controls."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    for entry in entries:
        result = entry.run.result
        label = labels[entry.run.key]
        parts = ((label, entry.is_control, result), (f"{label} control", True, result.get("control")))
        for name, is_control, part in parts:
            scores = scores_in_languages(part)
            if scores and entry.metric:
                groups.setdefault((entry.group, entry.metric), []).append((name, is_control, scores))
    return [
        draw_languages(
            runs, folder, name=f"languages-{slug(group)}", title=f"{group}: {metric} by language", metric=metric
        )
        for (group, metric), runs in groups.items()
    ]


def draw_languages(runs: Sequence[Scored], folder: Path, *, name: str, title: str, metric: str) -> SavedFigure:
    """Draw a dot for each run and language.

    Args:
        runs: at least one run; the first ``MAX_CURVES`` are drawn.
        folder: folder for the files.
        name: file name without suffix.
        title: title of the figure.
        metric: name of the metric, which decides the unit.
    """
    factor = 100.0 if in_percent(metric) else 1.0
    codes = list(dict.fromkeys(code for _, _, scores in runs for code in scores))
    title = with_count(title, len(runs))
    with drawing(name):
        figure = new_figure(title, width=max(5.2, 2.2 + 0.42 * len(codes)), height=3.6)
        axes = figure.subplots()
        coloured = iter(range(MAX_CURVES))
        for label, is_control, scores in runs[:MAX_CURVES]:
            xs = [place for place, code in enumerate(codes) if code in scores]
            ys = [factor * scores[code] for code in codes if code in scores]
            ink = GREY if is_control else colour(next(coloured))
            axes.plot(xs, ys, "o", color=ink, markersize=6, label=shorten(label, 26))
        axes.set_xticks(range(len(codes)), codes)
        axes.set_xlim(-0.6, len(codes) - 0.4)
        axes.set_ylabel(f"{metric} (%)" if factor == 100.0 else metric)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)
        subtitle(axes, "mean over seeds")
        return save(figure, folder, name, title)


@dataclass(frozen=True, slots=True)
class Bar:
    """One condition of a task.

    Attributes:
        label: label of the bar.
        kind: decides the colour.
        score: the metric over seeds.
        difference: difference from the control; None for baselines and if there is no control.
    """

    label: str
    kind: BarKind
    score: Spread
    difference: Difference | None = None


def comparison_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """For each task the bars of majority, baselines, control, probe and finetuned runs, if there are at least two."""
    figures = []
    rows = [row for row in table_rows(entries) if row.score is not None and row.group != "pretraining"]
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group]
        for metric in dict.fromkeys(row.metric for row in members):
            comparable = [row for row in members if row.metric == metric and row.score is not None]
            bars = [Bar(row.label, _kind(row.transfer), row.score, row.difference) for row in comparable if row.score]
            if len(bars) < 2:
                continue
            name = f"comparison-{slug(group)}-{slug(metric)}"
            figures.append(draw_comparison(bars, folder, name=name, title=f"{group}: {metric}", metric=metric))
    return figures


def _kind(transfer: str) -> BarKind:
    kinds: dict[str, BarKind] = {name: name for name in ("majority", "baseline", "control", "frozen")}
    return kinds.get(transfer, "finetuned")


def draw_comparison(bars: Sequence[Bar], folder: Path, *, name: str, title: str, metric: str) -> SavedFigure:
    """Draw bars from zero with a dot for each seed, and next to them the difference from the control with its interval.

    Args:
        bars: from top to bottom.
        folder: folder for the files.
        name: file name without suffix.
        title: title of the figure.
        metric: name of the metric, which decides the unit.
    """
    factor = 100.0 if in_percent(metric) else 1.0
    differences = any(bar.difference is not None for bar in bars)
    with drawing(name):
        figure = new_figure(title, width=9.2 if differences else 6.6, height=1.25 + 0.42 * len(bars))
        if differences:
            left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
            _draw_differences(right, bars, metric, factor)
        else:
            left = figure.subplots()
        _draw_scores(left, bars, metric, factor)
        return save(figure, folder, name, title)


def _draw_scores(axes: Any, bars: Sequence[Bar], metric: str, factor: float) -> None:
    places = list(range(len(bars)))
    axes.barh(places, [factor * bar.score.mean for bar in bars], height=0.62, color=[_FILL[bar.kind] for bar in bars])
    latest = 0.0
    for place, bar in zip(places, bars, strict=True):
        values = [factor * value for value in bar.score.values]
        end = max([factor * bar.score.mean, *values])
        text = shown(bar.score.mean, metric)
        if bar.score.deviation is not None:
            deviation = factor * bar.score.deviation
            axes.errorbar(factor * bar.score.mean, place, xerr=deviation, color=INK, linewidth=1.2, capsize=3)
            end = max(end, factor * bar.score.mean + deviation)
            text += f" \u00b1 {shown(bar.score.deviation, metric)}"
        if len(values) > 1:
            seed_dots(axes, values, [place] * len(values), INK)
        axes.annotate(text, (end, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5)
        latest = max(latest, end)
    axes.set_yticks(places, [shorten(bar.label) for bar in bars], color=INK)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(min(0.0, *(factor * bar.score.mean for bar in bars)), 1.3 * latest or 1.0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{metric} (%)" if factor == 100.0 else metric)
    if any(bar.score.n > 1 for bar in bars):
        subtitle(axes, "bar: mean, whisker: deviation, dots: seeds")


def _draw_differences(axes: Any, bars: Sequence[Bar], metric: str, factor: float) -> None:
    axes.axvline(0.0, color=GREY, linewidth=1.2)
    low = high = 0.0
    for place, bar in enumerate(bars):
        if bar.difference is None:
            continue
        delta = factor * bar.difference.delta
        interval = bar.difference.interval
        error = 0.0 if interval is None else factor * (interval[1] - interval[0]) / 2
        ink = _FILL[bar.kind]
        axes.errorbar(delta, place, xerr=error or None, fmt="o", color=ink, markersize=7, linewidth=2, capsize=4)
        axes.annotate(
            f"{shown_difference(bar.difference.delta, metric)}  {bar.difference.verdict}",
            (delta, place),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
        low, high = min(low, delta - error), max(high, delta + error)
    margin = 0.35 * (high - low) or 1.0  # space for the text beside the outermost dots
    axes.set_xlim(low - margin, high + margin)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("difference to control" + (" (points)" if factor == 100.0 else ""))
    subtitle(axes, "whisker: the interval that decides the verdict")
