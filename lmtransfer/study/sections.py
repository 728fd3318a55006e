"""The figures of a study, each with the sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.reporting.figures.layer_bars import draw_layer_weights
from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.layer_weights import LayerWeights, read_layer_weights
from lmtransfer.reporting.runs.scores import higher_is_better
from lmtransfer.reporting.sections import Section
from lmtransfer.reporting.verdict_text import interval_text, verdict_text
from lmtransfer.study.figure_specs import FigureSpec
from lmtransfer.study.lines import Line, Place, line_label, lines_of
from lmtransfer.study.plan import Plan
from lmtransfer.study.table import StudyRow
from lmtransfer.system.units import count, in_percent, shown, shown_difference
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.difference import BETTER, VERDICTS, Difference
from lmtransfer.verdicts.holm import corrected

#: Most lines of a figure that get a sentence.
_MOST = 6
#: From here on a number is shortened to three digits, and from there on written with an exponent.
_MANY, _LARGE = 1e5, 1e11
DEMONSTRATION = "This is a demonstration with short runs, so no verdicts are given."

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


def findings(spec: FigureSpec, lines: Sequence[Line], *, demonstration: bool = False) -> str:
    """The sentences under a figure.

    Each line is compared with itself at one place on the x axis (``against``, by default the first), and the verdicts
    of all comparisons in the figure are corrected together (Holm). A place that is the highest of many is judged by
    the same correction.

    Args:
        spec: the figure.
        lines: its lines.
        demonstration: give numbers without verdicts.
    """
    if not lines:
        return "No run of this figure is finished yet."
    differences = _differences(spec, lines)
    sentences = [
        _sentence(spec, line, differences[place], demonstration=demonstration) for place, line in enumerate(lines)
    ]
    left_out = [f"{len(lines) - _MOST} more lines are in the table."] if len(lines) > _MOST else []
    return " ".join([*sentences[:_MOST], *left_out, *([DEMONSTRATION] if demonstration else [])])


def _differences(spec: FigureSpec, lines: Sequence[Line]) -> list[dict[Place, Difference]]:
    """For each line the differences to its reference, judged together."""
    found: list[tuple[int, Place, Difference]] = []
    for number, line in enumerate(lines):
        reference = _reference(spec, line)
        base = dict(line.points)[reference]
        for place, entry in line.points:
            if place == reference or entry.condition is None or base.condition is None:
                continue
            difference = compare_conditions(
                entry.condition,
                base.condition,
                higher_is_better=higher_is_better(line.metric, entry.run.result),
                majority=entry.majority,
                baseline=entry.baseline_mean,
            )
            found.append((number, place, difference))
    found_verdicts = corrected([difference for _, _, difference in found])
    by_line: list[dict[Place, Difference]] = [{} for _ in lines]
    for (number, place, _), difference in zip(found, found_verdicts, strict=True):
        by_line[number][place] = difference
    return by_line


def _reference(spec: FigureSpec, line: Line) -> Place:
    """The place that the others are compared with."""
    named = [place for place, _ in line.points if place_text(place) == spec.against]
    return named[0] if named else line.points[0][0]


def _sentence(spec: FigureSpec, line: Line, differences: dict[Place, Difference], *, demonstration: bool) -> str:
    means = {place: entry.score.mean for place, entry in line.points if entry.score is not None}
    higher = higher_is_better(line.metric, line.points[0][1].run.result)
    best = (max if higher else min)(means, key=lambda place: means[place])
    unit, points = (" %", " points") if in_percent(line.metric) else ("", "")
    value = f"{shown(means[best], line.metric)}{unit}"
    control = dict(line.points)[best].control
    control_text = "" if control is None else f" ({shown(control.mean, line.metric)}{unit} without pretraining)"
    if len(means) == 1:
        return f"{line.label}: {line.metric} {value} at {place_text(best)}{control_text}."
    reference = _reference(spec, line)
    text = f"{line.label}: the best {line.metric} is {value} at {place_text(best)}{control_text}"
    found_verdicts = differences.get(best)
    if best == reference:
        text += ", the reference itself"
    elif found_verdicts is not None:
        text += f", {shown_difference(found_verdicts.delta, line.metric)}{points} against {place_text(reference)}"
        if not demonstration:
            interval = interval_text(found_verdicts, line.metric)
            text += (
                f" ({interval}; {verdict_text(found_verdicts)})" if interval else f" ({verdict_text(found_verdicts)})"
            )
    text += _counting(dict(line.points)[best], line.metric, higher=higher)
    return text + ("" if demonstration else _counts(differences) + _controls(line)) + "."


def _counting(entry: Entry, metric: str, *, higher: bool) -> str:
    """That a baseline reaches the score of the best place, if it does."""
    if entry.baseline is None or entry.score is None:
        return ""
    reached = entry.baseline.mean >= entry.score.mean if higher else entry.baseline.mean <= entry.score.mean
    unit = " %" if in_percent(metric) else ""
    named = f"{entry.better_baseline}: {shown(entry.baseline.mean, metric)}{unit}"
    return f"; counting words does as well ({named})" if reached else ""


def _counts(differences: dict[Place, Difference]) -> str:
    """How many places differ from the reference."""
    found_verdicts = [difference.verdict for difference in differences.values() if difference.verdict in VERDICTS]
    if len(found_verdicts) < 2:
        return ""
    parts = [f"{found_verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found_verdicts]
    return f"; of the {len(found_verdicts)} compared with the reference, {', '.join(parts)}"


def _controls(line: Line) -> str:
    """At how many places pretraining helped."""
    compared = [entry.difference.verdict for _, entry in line.points if entry.difference is not None]
    found_verdicts = [verdict for verdict in compared if verdict in VERDICTS]
    better = sum(verdict in BETTER for verdict in found_verdicts)
    return f"; better than without pretraining in {better} of {len(found_verdicts)} cases" if found_verdicts else ""


def place_text(place: Place) -> str:
    """A place on the x axis as text."""
    if isinstance(place, str):
        return place
    if place >= _LARGE:
        return f"{place:.3g}"
    return count(place) if place >= _MANY else f"{place:,.10g}"


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
