"""The score of a task over the tokens of pretraining, for transfers that start from revisions of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure, slug
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.sweeps import PRETRAINING_TOKENS
from lmtransfer.verdicts.spread import Spread


def revision_figures(entries: Sequence[Entry], folder: Path) -> list[SavedFigure]:
    """One figure for each task and metric, if some line has two points or more."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in _with_revisions(entries):
        groups.setdefault((entry.group, str(entry.metric)), []).append(entry)
    figures = []
    for (task, metric), members in groups.items():
        series = _series(members)
        if max(len(line.points) for line in series) < 2:
            continue
        figures.append(
            draw_points(
                series,
                folder,
                name=f"revisions-{slug(task)}-{slug(metric)}",
                title=f"{task}: {metric} by {PRETRAINING_TOKENS}",
                key=PRETRAINING_TOKENS,
                metric=metric,
                counts=True,
            )
        )
    return figures


def _with_revisions(entries: Sequence[Entry]) -> list[Entry]:
    """The scored entries of runs that have revisions: those that start from a revision, or from the trained model."""
    scored = [entry for entry in entries if entry.source and entry.score and entry.metric]
    ran = {entry.source.path for entry in scored if entry.source and entry.source.revision is not None}
    return [entry for entry in scored if entry.source and entry.source.path in ran]


def _series(entries: Sequence[Entry]) -> list[Series]:
    """One line for each run and way of transfer, and one for its controls."""
    several = len({entry.source.path for entry in entries if entry.source}) > 1
    lines: dict[tuple[str, bool], dict[float | str, Spread]] = {}
    for entry in entries:
        assert entry.source is not None
        assert entry.score is not None
        label = f"{entry.transfer} {entry.source.path.name}" if several else entry.transfer
        tokens = entry.pretraining_tokens or 0.0
        lines.setdefault((label, False), {})[tokens] = entry.score
        if entry.control is not None:
            lines.setdefault((f"{label}, control", True), {})[tokens] = entry.control
    return [
        Series(label, tuple(sorted(points.items(), key=lambda point: float(point[0]))), control)
        for (label, control), points in lines.items()
    ]
