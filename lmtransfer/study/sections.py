"""The table of a study, and its figures, each with sentences that describe the scores."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.reporting.figures.drawing import draw
from lmtransfer.reporting.figures.scores import SeriesScore, layer_panel
from lmtransfer.reporting.figures.spec import Chart, Panel, Place, make_series, points_panel, sort_points
from lmtransfer.reporting.page.report import Section
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.details import LayerWeights, read_layer_weights
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.table import (
    PLUS_MINUS,
    Cell,
    Group,
    Line,
    ReportTable,
    TableColumn,
    difference_text,
    markdown_table,
    metric_heading,
    metrics_cell,
    score_text,
)
from lmtransfer.reporting.verdict_text import difference_with_unit, interval_text, verdict_text, with_unit
from lmtransfer.reporting.what_now import Finding
from lmtransfer.study.plan import PRETRAIN, FigureSpec, StudyPlan
from lmtransfer.system.durable import write_text
from lmtransfer.system.printable import count, format_metric
from lmtransfer.system.validation import value_at
from lmtransfer.verdicts.difference import BETTER, VERDICTS, Difference
from lmtransfer.verdicts.verdict import judge_column

#: Losses that are the cross entropy of each token given all preceding (or all following) tokens.
_LANGUAGE_MODELS = ("lm", "backward_lm", "bilm")
#: Maximum number of transfers for a table with one line per recipe; with more it is too wide.
_MANY_RUNS = 3
_NOTE = (
    f"Mean {PLUS_MINUS} standard deviation over seeds. Control: the same architecture without pretraining. "
    "Baseline: the better of the baselines that count words, on the same training examples. "
    "Difference: with the 95 % interval that decides the verdict, corrected for the whole column (Holm). Cost: "
    "the share of parameters trained on the task, the peak memory, the time per seed. Losses of different objectives "
    "cannot be compared, and neither can perplexities of different vocabularies."
)
#: The columns of the table with one line per transfer.
_TRANSFERS = (
    TableColumn("", ("recipe",)),
    TableColumn("task", ("transfer",)),
    *map(TableColumn, ("metric", "majority", "baseline", "control")),
    TableColumn("pretrained", ("score",), notes=("other metrics",)),
    *map(TableColumn, ("difference", "to baseline", "cost")),
)

#: Maximum number of lines in a figure that get a sentence.
_MAX_LINES = 6
#: Numbers of at least the first value are shortened to three digits, those of at least the second get an exponent.
_MANY, _LARGE = 1e5, 1e11
DEMONSTRATION = "This is a demonstration with short runs, so no verdicts are given."
#: Maximum number of lines for which controls are drawn; with more, the controls would hide the lines.
_MOST_WITH_CONTROLS = 4
#: Attributes of a pretraining entry.
_OF_PRETRAINING = {
    "parameters": "num_parameters",
    "tokens": "pretraining_tokens",
    "seconds": "pretraining_seconds",
}


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One recipe.

    Attributes:
        transfers: the existing runs of the recipe's transfers, keyed by name.
    """

    recipe: str
    pretraining: Entry | None
    transfers: Mapping[str, Entry]

    @property
    def losses(self) -> Mapping[str, float]:
        """The validation losses and metrics, keyed by name."""
        metrics = {} if self.pretraining is None else self.pretraining.run.result.get("metrics") or {}
        return {name: value for name, value in metrics.items() if value is not None}

    @property
    def perplexity(self) -> float | None:
        """The per-token perplexity, if the objective is a language model."""
        loss = next((self.losses[name] for name in _LANGUAGE_MODELS if name in self.losses), None)
        return None if loss is None else math.exp(min(loss, 700.0))

    @property
    def accuracy(self) -> float | None:
        """The first accuracy among the validation metrics."""
        return next((value for name, value in self.losses.items() if name.endswith("_accuracy")), None)


def read_rows(plan: StudyPlan) -> list[StudyRow]:
    """Read the rows of all recipes whose runs have started."""
    if not any(job.run.is_dir() for job in plan.jobs):
        return []
    folders = {job.run for job in plan.jobs if job.shared}
    folders |= {plan.folder for job in plan.jobs if not job.shared and job.run.is_dir()}
    entries = {entry.run.path: entry for folder in folders for entry in make_entries(collect(folder))}
    rows = []
    for recipe in plan.recipes:
        jobs = {job.stage: job.run.resolve() for job in plan.jobs if job.recipe == recipe}  # like the paths of entries
        of_stages = {stage: entries[run] for stage, run in jobs.items() if run in entries}
        if of_stages:
            rows.append(StudyRow(recipe, of_stages.pop(PRETRAIN, None), of_stages))
    return rows


def study_findings(rows: Sequence[StudyRow]) -> list[Finding]:
    """Return the weightiest finding of each transfer, with the recipes and transfers that have the same one."""
    places: dict[str, list[str]] = {}
    commands: dict[str, str] = {}
    for row in rows:
        for name, entry in row.transfers.items():
            for saved in (entry.run.result.get("findings") or [])[:1]:
                places.setdefault(saved["text"], []).append(f"{row.recipe} {name}")
                commands.setdefault(saved["text"], saved["command"])
    return [
        Finding(f"{of[0]}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {text}", commands[text])
        for text, of in places.items()
    ]


def write_table(rows: Sequence[StudyRow], plan: StudyPlan) -> Path:
    """Write the table as Markdown, CSV and JSON; return the common path without suffix."""
    path = plan.folder / plan.name
    records = [_record(row, plan) for row in rows]
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write_text(path.with_name(f"{plan.name}.md"), markdown(rows, plan))
    write_text(path.with_name(f"{plan.name}.csv"), text.getvalue())
    write_text(path.with_name(f"{plan.name}.json"), json.dumps(records, indent=1, allow_nan=False) + "\n")
    return path


def _record(row: StudyRow, plan: StudyPlan) -> dict[str, Any]:
    record: dict[str, Any] = {"recipe": row.recipe}
    if row.pretraining is not None:
        entry = row.pretraining
        record |= {
            "state": entry.run.state,
            "model": entry.model,
            "objective": entry.objective,
            "corpus": entry.corpus,
            "parameters": entry.num_parameters,
            "tokens": entry.pretraining_tokens,
            "seconds": entry.pretraining_seconds,
            "tokens_per_second": entry.tokens_per_second,
        }
        record |= {f"validation_{name}": value for name, value in row.losses.items()}
        if row.perplexity is not None:
            record["validation_perplexity"] = row.perplexity
    for name, entry in row.transfers.items():
        record |= {f"{name}_metric": entry.metric}
        record |= {f"{name}_{what}": value for what, value in entry.cost.values().items()}
        for part, score in (("", entry.score), ("_control", entry.control)):
            if score is not None:
                record |= {f"{name}{part}": score.mean, f"{name}{part}_deviation": score.deviation}
                record |= {f"{name}{part}_seeds": score.n}
        for metric, score in entry.other_metrics.items():
            record |= {f"{name}_{metric}": score.mean, f"{name}_{metric}_deviation": score.deviation}
        if entry.majority is not None:
            record[f"{name}_majority"] = entry.majority
        record |= {f"{name}_{baseline}": score.mean for baseline, score in entry.baselines.items()}
        record |= _verdict(name, entry.difference) | _verdict(f"{name}_to_baseline", entry.baseline_difference)
    return record


def _verdict(name: str, difference: Difference | None) -> dict[str, Any]:
    if difference is None:
        return {}
    return {
        f"{name}_difference": difference.delta,
        **dict(zip((f"{name}_low", f"{name}_high"), difference.interval or (None, None), strict=True)),
        f"{name}_standard_error": difference.standard_error,
        f"{name}_p_value": difference.corrected_p_value,
        f"{name}_scope": difference.scope,
        f"{name}_detectable": difference.detectable_difference,
        f"{name}_seeds_needed": difference.seeds_needed,
        f"{name}_verdict": difference.verdict,
    }


def markdown(rows: Sequence[StudyRow], plan: StudyPlan) -> str:
    """Render the table as Markdown, with one line per recipe; with many transfers, one line per transfer."""
    table = study_table(rows, plan)
    if len(plan.transfers) <= _MANY_RUNS:
        table = table.select(_wide(rows, plan)).without_empty()
    return f"{markdown_table(table)}\n{table.note}\n"


def study_table(rows: Sequence[StudyRow], plan: StudyPlan) -> ReportTable:
    """Build the table for a terminal 100 characters wide, a group per recipe; with many transfers, a line for each."""
    title = f"study {plan.name}"
    if len(plan.transfers) > _MANY_RUNS:
        lines = tuple(
            Line({"recipe": Cell(row.recipe), "transfer": Cell(name), **_transfer(row.transfers.get(name))})
            for row in rows
            for name in plan.transfers
        )
        return ReportTable(title, _TRANSFERS, (Group(lines),), title=title, note=_NOTE)
    groups = tuple(Group((_recipe(row),)) for row in rows)
    return ReportTable(title, _narrow(rows, plan), groups, title=title, note=_NOTE)


def _wide(rows: Sequence[StudyRow], plan: StudyPlan) -> list[TableColumn]:
    names = ("model", "objective", "parameters", "tokens", "tokens/s", "loss", "perplexity", "accuracy")
    columns = [TableColumn("", ("recipe",)), *map(TableColumn, names)]
    for name in plan.transfers:
        columns.append(TableColumn(f"{name}: {_metric(rows, name)}", (f"{name} score",)))
        columns.append(TableColumn("other metrics", (f"{name} other metrics",), separator=", "))
        parts = ("control", "difference", "baseline", "to baseline", "cost")
        columns += [TableColumn(part, (f"{name} {part}",)) for part in parts]
    return columns


def _narrow(rows: Sequence[StudyRow], plan: StudyPlan) -> tuple[TableColumn, ...]:
    return (
        TableColumn("", ("recipe",), notes=("model", "objective"), width=(15, None), is_bold=True),
        TableColumn("pretraining", ("{parameters} parameters",), notes=("{tokens} tokens", "{tokens/s} tok/s")),
        TableColumn("validation", ("loss {loss}", "state"), notes=("perplexity {perplexity}", "accuracy {accuracy}")),
        *(
            TableColumn(
                f"{name}\n{_metric(rows, name)}",
                (f"{name} score",),
                notes=(f"{name} other metrics", f"control {{{name} control}}", f"{name} difference")
                + (f"baseline {{{name} baseline}}", f"{name} to baseline", f"{name} cost"),
                is_bold=True,
            )
            for name in plan.transfers
        ),
    )


def _recipe(row: StudyRow) -> Line:
    entry, perplexity, accuracy = row.pretraining, row.perplexity, row.accuracy
    texts = {
        "recipe": row.recipe,
        "loss": format_metric(row.losses["loss"], "loss") if "loss" in row.losses else "",
        "perplexity": "" if perplexity is None else f"{perplexity:,.1f}",
        "accuracy": "" if accuracy is None else f"{100 * accuracy:.1f} %",
    }
    if entry is not None:
        texts |= {"model": entry.model, "objective": entry.objective}
        texts["state"] = "" if texts["loss"] else entry.run.state
        sizes = (entry.num_parameters, entry.pretraining_tokens, entry.tokens_per_second)
        for name, size in zip(("parameters", "tokens", "tokens/s"), sizes, strict=True):
            texts[name] = count(size) if size else ""
    cells = {name: Cell(text) for name, text in texts.items()}
    for transfer, result in row.transfers.items():
        cells |= {f"{transfer} {name}": cell for name, cell in _transfer(result).items()}
    return Line(cells)


def _transfer(entry: Entry | None) -> dict[str, Cell]:
    """Build the cells of a transfer, with its state in place of a missing score."""
    if entry is None:
        return {}
    metric = entry.metric or ""
    texts = {"metric": metric_heading(metric), "score": entry.run.state, "cost": ", ".join(entry.cost.in_short)}
    texts["majority"] = "" if entry.majority is None else format_metric(entry.majority, metric)
    if entry.score is not None:
        texts |= {"score": score_text(entry.score, metric), "control": score_text(entry.control, metric)}
        texts["difference"] = _difference_and_verdict(entry.difference, metric)
    if entry.baseline is not None:
        texts["baseline"] = f"{score_text(entry.baseline, metric)} ({entry.better_baseline})"
        texts["to baseline"] = _difference_and_verdict(entry.baseline_difference, metric)
    return {**{name: Cell(text) for name, text in texts.items()}, "other metrics": metrics_cell(entry.other_metrics)}


def _difference_and_verdict(difference: Difference | None, metric: str) -> str:
    return f"{difference_text(difference, metric)} {verdict_text(difference, metric)}".strip()


def _metric(rows: Sequence[StudyRow], transfer: str) -> str:
    metrics = (row.transfers[transfer].metric for row in rows if transfer in row.transfers)
    return metric_heading(next((metric for metric in metrics if metric), ""))


@dataclass(frozen=True, slots=True)
class FigureLine:
    """Scores that belong together.

    Attributes:
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
    for row in rows:
        if spec.recipes and row.recipe not in spec.recipes:
            continue
        if spec.y != "loss":
            chosen = spec.transfers or tuple(row.transfers)
            yield from ((row, name, entry) for name, entry in row.transfers.items() if name in chosen)
        elif row.pretraining is not None:
            yield row, "pretraining", row.pretraining


def line_label(spec: FigureSpec, row: StudyRow, transfer: str, entry: Entry) -> str:
    """Return the label of the line that a run belongs to."""
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
    """Convert a value to a place: a number if possible, otherwise text."""
    if value is None:
        return None
    as_number = number(value)
    return str(value) if as_number is None else as_number


def findings(spec: FigureSpec, lines: Sequence[FigureLine], *, demonstration: bool = False) -> str:
    """Write the sentences under a figure.

    Each line is compared with itself at one place on the x axis (``against``, by default the first), and the verdicts
    of all comparisons in the figure are corrected together (Holm). The best of many places is judged with the same
    correction.
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
    for line_index, line in enumerate(lines):
        reference = _reference(spec, line)
        base = dict(line.points)[reference]
        for place, entry in line.points:
            difference = None if place == reference else entry.compare(base.condition)
            if difference is not None:
                differences.append((line_index, place, difference))
    corrected_differences = judge_column([difference for _, _, difference in differences])
    by_line: list[dict[Place, Difference]] = [{} for _ in lines]
    for (line_index, place, _), difference in zip(differences, corrected_differences, strict=True):
        by_line[line_index][place] = difference
    return by_line


def _reference(spec: FigureSpec, line: FigureLine) -> Place:
    matches = [place for place, _ in line.points if place_text(place) == spec.against]
    return matches[0] if matches else line.points[0][0]


def _sentence(spec: FigureSpec, line: FigureLine, differences: dict[Place, Difference], *, demonstration: bool) -> str:
    means = {place: entry.score.mean for place, entry in line.points if entry.score is not None}
    higher = line.points[0][1].higher_is_better
    best = (max if higher else min)(means, key=lambda place: means[place])
    value = with_unit(means[best], line.metric)
    control = dict(line.points)[best].control
    control_text = "" if control is None else f" ({with_unit(control.mean, line.metric)} without pretraining)"
    if len(means) == 1:
        return f"{line.label}: {line.metric} {value} at {place_text(best)}{control_text}."
    reference = _reference(spec, line)
    text = f"{line.label}: the best {line.metric} is {value} at {place_text(best)}{control_text}"
    difference = differences.get(best)
    if best == reference:
        text += ", the reference itself"
    elif difference is not None:
        text += f", {difference_with_unit(difference.delta, line.metric)} against {place_text(reference)}"
        if not demonstration:
            interval = interval_text(difference, line.metric)
            text += f" ({interval}; {verdict_text(difference)})" if interval else f" ({verdict_text(difference)})"
    text += _counting(dict(line.points)[best], line.metric, demonstration=demonstration)
    return text + ("" if demonstration else _counts(differences) + _controls(line)) + "."


def _counting(entry: Entry, metric: str, *, demonstration: bool) -> str:
    """State the difference from the better word-count baseline at the best place; empty if the score is better."""
    difference = entry.baseline_difference
    if difference is None or difference.verdict in BETTER:
        return ""
    text = f"; {difference_with_unit(difference.delta, metric)} against {entry.better_baseline}, which counts words"
    return text if demonstration else f"{text} ({verdict_text(difference)})"


def _counts(differences: dict[Place, Difference]) -> str:
    verdicts = [difference.verdict for difference in differences.values() if difference.verdict in VERDICTS]
    if len(verdicts) < 2:
        return ""
    parts = [f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts]
    return f"; of the {len(verdicts)} compared with the reference, {', '.join(parts)}"


def _controls(line: FigureLine) -> str:
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
    """Draw the figures of a study with at least two finished points."""
    sections = []
    for spec in plan.figures:
        content = _layer_weights(spec, rows, plan) if spec.y == "layer_weights" else _scores(spec, rows, plan)
        if content is not None:
            panel, sentence = content
            figure = draw(Chart(f"{plan.name}-{spec.name}", spec.title, (panel,)), plan.folder / "figures")
            sections.append(Section(spec.title, sentence, plan.command, figure.svg))
    return sections


def _scores(spec: FigureSpec, rows: Sequence[StudyRow], plan: StudyPlan) -> tuple[Panel, str] | None:
    lines = lines_of(spec, rows)
    if sum(len(line.points) for line in lines) < 2:
        return None
    metric = lines[0].metric
    same = [line for line in lines if line.metric == metric]
    series = make_series(_with_controls(same, has_controls=spec.y == "score" and len(same) <= _MOST_WITH_CONTROLS))
    panel = points_panel(spec.x, metric if spec.y == "score" else f"validation {metric}", series)
    return panel, findings(spec, same, demonstration=plan.demonstration)


def _with_controls(lines: Sequence[FigureLine], *, has_controls: bool) -> Iterator[SeriesScore]:
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
