"""The figures of a study, each with the sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.reporting.figures.layer_bars import draw_layer_weights
from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.layer_weights import LayerWeights, read_layer_weights
from lmtransfer.reporting.sections import Section
from lmtransfer.study.figure_specs import FigureSpec
from lmtransfer.study.findings import DEMONSTRATION, findings
from lmtransfer.study.lines import Line, line_label, lines_of
from lmtransfer.study.plan import Plan
from lmtransfer.study.table import StudyRow

#: What the places on the x axis are called.
_HEADINGS = {
    "num_train": "labelled training examples",
    "tokens": "tokens of pretraining",
    "seconds": "seconds of pretraining",
    "flops": "FLOP of pretraining",
    "layer": "layer (0: embeddings)",
}
#: With more lines than this, the lines of their controls would hide them.
_MOST_WITH_CONTROLS = 4
_COUNTS = ("num_train", "parameters", "tokens", "flops")


def make_sections(rows: Sequence[StudyRow], plan: Plan) -> list[Section]:
    """Draw the figures of a study for which at least two points are finished.

    Args:
        rows: its rows.
        plan: the study; figures go to ``figures/`` in its folder.
    """
    folder = plan.folder / "figures"
    made = []
    for spec in plan.figures:
        if spec.y == "layer_weights":
            section = _layer_weights(spec, rows, plan, folder)
        else:
            section = _scores(spec, lines_of(spec, rows), plan, folder)
        made += [] if section is None else [section]
    return made


def _scores(spec: FigureSpec, lines: Sequence[Line], plan: Plan, folder: Path) -> Section | None:
    if sum(len(line.points) for line in lines) < 2:
        return None
    first = lines[0].metric
    shown = [line for line in lines if line.metric == first]
    figure = draw_points(
        _series(shown, with_controls=spec.y == "score"),
        folder,
        name=f"{plan.name}-{spec.name}",
        title=spec.title,
        key=_HEADINGS.get(spec.x, spec.x),
        metric=first if spec.y == "score" else f"validation {first}",
        counts=spec.x in _COUNTS,
    )
    return _section(spec, plan, figure, findings(spec, shown, demonstration=plan.demonstration))


def _series(lines: Sequence[Line], *, with_controls: bool) -> list[Series]:
    """The lines, and their controls in grey."""
    series = []
    for line in lines:
        points = tuple((place, entry.score) for place, entry in line.points if entry.score is not None)
        series.append(Series(line.label, points))
    for line in lines if with_controls and len(lines) <= _MOST_WITH_CONTROLS else ():
        controls = tuple((place, entry.control) for place, entry in line.points if entry.control is not None)
        if controls:
            label = "without pretraining" if len(lines) == 1 else f"{line.label}, control"
            series.append(Series(label, controls, is_control=True))
    return series


def _layer_weights(spec: FigureSpec, rows: Sequence[StudyRow], plan: Plan, folder: Path) -> Section | None:
    """The learned mix of layers of each transfer."""
    found: list[LayerWeights] = []
    for row in rows:
        for name, entry in row.transfers.items():
            if (spec.recipes and row.recipe not in spec.recipes) or (spec.transfers and name not in spec.transfers):
                continue
            label = line_label(spec, row, name, entry)
            mix = read_layer_weights(entry.run.result, label, seeds=[seed.result for seed in entry.seeds])
            found += [] if mix is None else [mix]
    same = [mix for mix in found if len(mix.weights) == len(found[0].weights)]
    if not same:
        return None
    figure = draw_layer_weights(same, folder, name=f"{plan.name}-{spec.name}", title=spec.title)
    sentence = " ".join(_largest(mix) for mix in same)
    return _section(spec, plan, figure, f"{sentence} {DEMONSTRATION}" if plan.demonstration else sentence)


def _largest(mix: LayerWeights) -> str:
    """The layer with the largest weight, and whether the seeds agree on it."""
    top = max(range(len(mix.weights)), key=lambda layer: mix.weights[layer])
    name = "the embeddings" if top == 0 else f"layer {top}"
    text = f"{mix.label}: the largest weight, {mix.weights[top]:.2f}, is on {name}"
    if len(mix.seeds) < 2:
        return f"{text} (one seed)."
    agree = sum(max(range(len(seed)), key=lambda layer: seed[layer]) == top for seed in mix.seeds)
    return f"{text}, in {agree} of {len(mix.seeds)} seeds; equal weights would be {1 / len(mix.weights):.2f}."


def _section(spec: FigureSpec, plan: Plan, figure: SavedFigure, sentence: str) -> Section:
    return Section(spec.title, sentence, plan.command, figure)
