"""The figures of a study: the scores to show, and the sentences that describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.figures.kinds import draw
from lmtransfer.reporting.figures.scores import SeriesScore, layer_panel
from lmtransfer.reporting.figures.spec import Chart, Panel, Place, make_series, points_panel, sort_points
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.layer_weights import LayerWeights, read_layer_weights
from lmtransfer.reporting.runs.scores import higher_is_better, number
from lmtransfer.reporting.sections import Section
from lmtransfer.reporting.verdict_text import interval_text, verdict_text
from lmtransfer.study.figure_specs import FigureSpec
from lmtransfer.study.plan import StudyPlan
from lmtransfer.study.table import StudyRow
from lmtransfer.system.mappings import value_at
from lmtransfer.system.units import count, format_difference, format_metric, in_percent
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.difference import BETTER, VERDICTS, Difference
from lmtransfer.verdicts.holm import correct_column

#: Maximum number of lines in a figure that get a sentence.
_MAX_LINES = 6
#: Numbers from the first value on are shortened to three digits, from the second on written with an exponent.
_MANY, _LARGE = 1e5, 1e11
DEMONSTRATION = "This is a demonstration with short runs, so no verdicts are given."

#: Maximum number of lines with controls; with more lines, the controls' lines would hide them.
_MOST_WITH_CONTROLS = 4
#: Attributes of a pretraining entry.
_OF_PRETRAINING = {
    "parameters": "num_parameters",
    "tokens": "pretraining_tokens",
    "seconds": "pretraining_seconds",
}


@dataclass(frozen=True, slots=True)
class FigureLine:
    """Scores that belong together.

    Attributes:
        label: what they have in common, such as the name of a transfer.
        metric: name of the metric.
        points: (place on the x axis, entry), sorted by place.
    """

    label: str
    metric: str
    points: tuple[tuple[Place, Entry], ...]


def lines_of(spec: FigureSpec, rows: Sequence[StudyRow]) -> list[FigureLine]:
    """Return the lines of a figure with the finished runs; runs without a place on the x axis are left out."""
    points_of_lines: dict[tuple[str, str], dict[Place, Entry]] = {}
    for row, transfer, entry in _chosen(spec, rows):
        place = _place(spec.x, row, transfer, entry)
        if place is not None and entry.score is not None and entry.metric is not None:
            points_of_lines.setdefault((line_label(spec, row, transfer, entry), entry.metric), {})[place] = entry
    return [FigureLine(label, metric, sort_points(points)) for (label, metric), points in points_of_lines.items()]


def _chosen(spec: FigureSpec, rows: Sequence[StudyRow]) -> Iterator[tuple[StudyRow, str, Entry]]:
    """Yield the runs of a figure: row, name of the transfer, run."""
    for row in rows:
        if spec.recipes and row.recipe not in spec.recipes:
            continue
        if spec.y != "loss":
            chosen = spec.transfers or tuple(row.transfers)
            yield from ((row, name, entry) for name, entry in row.transfers.items() if name in chosen)
        elif row.pretraining is not None:
            yield row, "pretraining", row.pretraining


def line_label(spec: FigureSpec, row: StudyRow, transfer: str, entry: Entry) -> str:
    """Return the label of the line that a run belongs to.

    Args:
        row: the recipe's row.
    """
    labels = {"recipe": row.recipe, "task": entry.task, "method": entry.transfer, "model": entry.model}
    return labels.get(spec.lines, transfer)


def _place(x: str, row: StudyRow, transfer: str, entry: Entry) -> Place | None:
    if x in ("recipe", "transfer", "task"):
        return {"recipe": row.recipe, "transfer": transfer, "task": entry.task}[x]
    if x == "num_train":
        return number(entry.run.result.get("num_train")) if entry.num_train is None else float(entry.num_train)
    if x == "layer":
        return _plain(value_at(entry.run.config, "transfer.layers"))
    if x in _OF_PRETRAINING:
        return None if row.pretraining is None else getattr(row.pretraining, _OF_PRETRAINING[x])
    if x == "flops":
        return None if row.pretraining is None else number(row.pretraining.run.result.get("flops"))
    pretrained = None if row.pretraining is None else value_at(row.pretraining.run.config, x)
    return _plain(value_at(entry.run.config, x) if pretrained is None else pretrained)


def _plain(value: Any) -> Place | None:
    """Convert a value to a place: a number, else its text."""
    if value is None:
        return None
    as_number = number(value)
    return str(value) if as_number is None else as_number


def findings(spec: FigureSpec, lines: Sequence[FigureLine], *, demonstration: bool = False) -> str:
    """Write the sentences under a figure.

    Each line is compared with itself at one place on the x axis (``against``, by default the first), and the verdicts
    of all comparisons in the figure are corrected together (Holm). The best of many places is judged with the same
    correction.

    Args:
        demonstration: whether to give numbers without verdicts.
    """
    if not lines:
        return "No run of this figure is finished yet."
    differences = _differences(spec, lines)
    sentences = [
        _sentence(spec, line, differences[place], demonstration=demonstration) for place, line in enumerate(lines)
    ]
    left_out = [f"{len(lines) - _MAX_LINES} more lines are in the table."] if len(lines) > _MAX_LINES else []
    return " ".join([*sentences[:_MAX_LINES], *left_out, *([DEMONSTRATION] if demonstration else [])])


def _differences(spec: FigureSpec, lines: Sequence[FigureLine]) -> list[dict[Place, Difference]]:
    """Return the differences of each line from its reference, judged together."""
    differences: list[tuple[int, Place, Difference]] = []
    for line_number, line in enumerate(lines):
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
            differences.append((line_number, place, difference))
    corrected_differences = correct_column([difference for _, _, difference in differences])
    by_line: list[dict[Place, Difference]] = [{} for _ in lines]
    for (line_number, place, _), difference in zip(differences, corrected_differences, strict=True):
        by_line[line_number][place] = difference
    return by_line


def _reference(spec: FigureSpec, line: FigureLine) -> Place:
    """Return the place with which the others are compared."""
    matches = [place for place, _ in line.points if place_text(place) == spec.against]
    return matches[0] if matches else line.points[0][0]


def _sentence(spec: FigureSpec, line: FigureLine, differences: dict[Place, Difference], *, demonstration: bool) -> str:
    means = {place: entry.score.mean for place, entry in line.points if entry.score is not None}
    higher = higher_is_better(line.metric, line.points[0][1].run.result)
    best = (max if higher else min)(means, key=lambda place: means[place])
    unit, points = (" %", " points") if in_percent(line.metric) else ("", "")
    value = f"{format_metric(means[best], line.metric)}{unit}"
    control = dict(line.points)[best].control
    control_text = "" if control is None else f" ({format_metric(control.mean, line.metric)}{unit} without pretraining)"
    if len(means) == 1:
        return f"{line.label}: {line.metric} {value} at {place_text(best)}{control_text}."
    reference = _reference(spec, line)
    text = f"{line.label}: the best {line.metric} is {value} at {place_text(best)}{control_text}"
    difference = differences.get(best)
    if best == reference:
        text += ", the reference itself"
    elif difference is not None:
        text += f", {format_difference(difference.delta, line.metric)}{points} against {place_text(reference)}"
        if not demonstration:
            interval = interval_text(difference, line.metric)
            text += f" ({interval}; {verdict_text(difference)})" if interval else f" ({verdict_text(difference)})"
    text += _counting(dict(line.points)[best], line.metric, higher=higher)
    return text + ("" if demonstration else _counts(differences) + _controls(line)) + "."


def _counting(entry: Entry, metric: str, *, higher: bool) -> str:
    """Add a note if a baseline reaches the score at the best place."""
    if entry.baseline is None or entry.score is None:
        return ""
    reached = entry.baseline.mean >= entry.score.mean if higher else entry.baseline.mean <= entry.score.mean
    unit = " %" if in_percent(metric) else ""
    score = f"{entry.better_baseline}: {format_metric(entry.baseline.mean, metric)}{unit}"
    return f"; counting words does as well ({score})" if reached else ""


def _counts(differences: dict[Place, Difference]) -> str:
    """Say how many places differ from the reference."""
    verdicts = [difference.verdict for difference in differences.values() if difference.verdict in VERDICTS]
    if len(verdicts) < 2:
        return ""
    parts = [f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts]
    return f"; of the {len(verdicts)} compared with the reference, {', '.join(parts)}"


def _controls(line: FigureLine) -> str:
    """Say at how many places pretraining helped."""
    differences = [entry.difference for _, entry in line.points if entry.difference is not None]
    verdicts = [difference.verdict for difference in differences if difference.verdict in VERDICTS]
    better = sum(verdict in BETTER for verdict in verdicts)
    return f"; better than without pretraining in {better} of {len(verdicts)} cases" if verdicts else ""


def place_text(place: Place) -> str:
    """Convert a place on the x axis to text."""
    if isinstance(place, str):
        return place
    if place >= _LARGE:
        return f"{place:.3g}"
    return count(place) if place >= _MANY else f"{place:,.10g}"


def make_sections(rows: Sequence[StudyRow], plan: StudyPlan) -> list[Section]:
    """Draw the figures of a study with at least two finished points.

    Args:
        plan: the study, whose folder receives the figures in ``figures/``.
    """
    sections = []
    for spec in plan.figures:
        content = _layer_weights(spec, rows, plan) if spec.y == "layer_weights" else _scores(spec, rows, plan)
        if content is not None:
            panel, sentence = content
            figure = draw(Chart(f"{plan.name}-{spec.name}", spec.title, (panel,)), plan.folder / "figures")
            sections.append(Section(spec.title, sentence, plan.command, figure))
    return sections


def _scores(spec: FigureSpec, rows: Sequence[StudyRow], plan: StudyPlan) -> tuple[Panel, str] | None:
    """Build the panel of scores or losses against the place, and the sentences."""
    lines = lines_of(spec, rows)
    if sum(len(line.points) for line in lines) < 2:
        return None
    metric = lines[0].metric
    same = [line for line in lines if line.metric == metric]
    series = make_series(_with_controls(same, has_controls=spec.y == "score" and len(same) <= _MOST_WITH_CONTROLS))
    panel = points_panel(spec.x, metric if spec.y == "score" else f"validation {metric}", series)
    return panel, findings(spec, same, demonstration=plan.demonstration)


def _with_controls(lines: Sequence[FigureLine], *, has_controls: bool) -> Iterator[SeriesScore]:
    """Yield the scores of the lines, then those of their controls."""
    for line in lines:
        yield from ((line.label, False, place, entry.score) for place, entry in line.points if entry.score is not None)
    for line in lines if has_controls else ():
        label = "without pretraining" if len(lines) == 1 else f"{line.label}, control"
        yield from ((label, True, place, entry.control) for place, entry in line.points if entry.control is not None)


def _layer_weights(spec: FigureSpec, rows: Sequence[StudyRow], plan: StudyPlan) -> tuple[Panel, str] | None:
    """Build the panel of each transfer's learned layer mix, and sentences on the largest weights."""
    mixes: list[LayerWeights] = []
    for row, name, entry in _chosen(spec, rows):
        label = line_label(spec, row, name, entry)
        mix = read_layer_weights(entry.run.result, label, seeds=[seed.result for seed in entry.seeds])
        mixes += [] if mix is None else [mix]
    same = [mix for mix in mixes if len(mix.weights) == len(mixes[0].weights)]
    sentences = [*map(_largest, same), *([DEMONSTRATION] if plan.demonstration else [])]
    return (layer_panel(same), " ".join(sentences)) if same else None


def _largest(mix: LayerWeights) -> str:
    """Name the layer with the largest weight, and say whether the seeds agree."""
    top = max(range(len(mix.weights)), key=lambda layer: mix.weights[layer])
    name = "the embeddings" if top == 0 else f"layer {top}"
    text = f"{mix.label}: the largest weight, {mix.weights[top]:.2f}, is on {name}"
    if len(mix.seeds) < 2:
        return f"{text} (one seed)."
    agree = sum(max(range(len(seed)), key=lambda layer: seed[layer]) == top for seed in mix.seeds)
    return f"{text}, in {agree} of {len(mix.seeds)} seeds; equal weights would be {1 / len(mix.weights):.2f}."
