"""Scores in each language, for tasks that are scored in several."""

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
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.languages import scores_in_languages
from lmtransfer.system.units import in_percent

#: Label of a run, whether it is a control, and its score by language.
Scored = tuple[str, bool, Mapping[str, float]]


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
