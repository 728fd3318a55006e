"""The output of a probe, finetuning or evaluation command: a table, a verdict, and the next command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from lmtransfer.reporting.runs.details import (
    calibration_text,
    edge_text,
    final_lines,
    languages_text,
    layer_weights_text,
    search_text,
)
from lmtransfer.reporting.runs.scores import is_worse, other_metrics
from lmtransfer.reporting.table import metric_heading
from lmtransfer.reporting.verdict_text import verdict_lines
from lmtransfer.reporting.what_now import Finding, print_findings, print_next
from lmtransfer.system.console import Console
from lmtransfer.system.printable import count, duration, format_metric, in_percent, printable
from lmtransfer.verdicts.difference import Difference

Result = Mapping[str, Any]

#: The scores of a class by short name; the maximum number of classes to show, and of characters in a name.
_CLASS_SCORES = {"P": "precision", "R": "recall", "F1": "f1"}
_MAX_CLASSES, _MAX_CLASS_NAME = 12, 30


def print_result(
    console: Console,
    result: Result,
    *,
    name: str,
    next_commands: Sequence[str],
    findings: Sequence[Finding] = (),
    metrics: Sequence[str] = (),
) -> None:
    """Print the content of a ``result.json``; ``metrics`` names the task's metrics, the main one first."""
    is_measured = result["main_metric"] is not None  # a final model alone is not
    if is_measured:
        console.print(_score_table(result, name=name, metrics=metrics))
    for line in [*(remarks(result) if is_measured else []), *final_lines(result)]:
        console.print(line, soft_wrap=True)
    print_findings(findings, console)
    print_next(next_commands, console)


def _score_table(result: Result, *, name: str, metrics: Sequence[str]) -> Table:
    metric = str(result["main_metric"])
    unit = " (%)" if in_percent(metric) else ""
    title = f"{result['task']}, {result['split']}: {metric}{unit} of {result['num_scored']:,} examples"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    other_headings = [*map(metric_heading, metrics[1:])]
    was_trained = result.get("learning_rate") is not None
    for column in (
        "mean",
        "deviation",
        "median",
        *other_headings,
        "seeds",
        *(["learning rate"] if was_trained else []),
    ):
        table.add_column(column, justify="right")
    if result.get("majority"):
        majority = {"metrics": result["majority"]}
        cells = [format_metric(result["majority"][metric], metric), "", "", *_others(majority, metrics)]
        table.add_row(result.get("baseline", "majority label"), *cells)
    for baseline, part in (result.get("baselines") or {}).items():
        table.add_row(baseline, *_cells(part, metric, metrics))
    if result.get("control"):
        table.add_row("control, not pretrained", *_cells(result["control"], metric, metrics))
    table.add_row(name, *_cells(result, metric, metrics), style="bold")
    return table


def below_majority(result: Result) -> str:
    """Return a warning if the run or its control is worse than predictions that ignore the input, or an empty text."""
    metric = str(result["main_metric"])
    majority = (result.get("majority") or {}).get(metric)
    if majority is None:
        return ""
    parts = (("this run", result), ("the control", result.get("control")))
    names = [label for label, part in parts if part and is_worse(part["mean"], majority, metric, result)]
    if not names:
        return ""
    text = f"worse than the {result.get('baseline', 'majority label')} ({format_metric(majority, metric)})"
    if len(names) == 1:
        return f"warning: {names[0]} is {text}"
    return f"warning: {' and '.join(names)} are {text}, so their difference does not show what was learned"


def class_lines(classes: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return each class's precision, recall and F1 in percent, as aligned lines; empty without classes."""
    largest = sorted(classes, key=lambda name: -classes[name]["support"])[:_MAX_CLASSES]
    names = {name: escape(printable(name)[:_MAX_CLASS_NAME]) for name in largest}
    width = max((len(name) for name in names.values()), default=0)
    lines = [
        f"  {label:<{width}}  "
        + ", ".join(f"{key} {100 * classes[name][score]:5.1f}" for key, score in _CLASS_SCORES.items())
        + f"  ({classes[name]['support']:,.0f})"
        for name, label in names.items()
    ]
    more = len(classes) - len(lines)
    rest = [f"  {more:,} more classes are in result.json"] if more else []
    return ["by class, in percent, with the number of gold answers:", *lines, *rest] if lines else []


def remarks(result: Result) -> list[str]:
    """Return the lines below the table, the verdict first."""
    lines, metric = [], str(result["main_metric"])
    difference, to_baseline = map(Difference.from_values, (result.get("difference"), result.get("baseline_difference")))
    if difference is not None:
        lines += verdict_lines(difference, metric)
    if to_baseline is not None:
        lines += verdict_lines(to_baseline, metric, reference=result["better_baseline"])
    # The findings of a training say what stands out in the run itself, with a command.
    sides = [*(() if "findings" in result else (("of this run", result),)), ("of the control", result.get("control"))]
    for label, part in sides:
        if part and part["collapsed"]:
            lines.append(
                f"warning: {part['collapsed']} of {part['n']} seeds {label} predict the same label for every example"
            )
    for label, part in (("this run", result), ("the control", result.get("control"))):
        lines += [f"{sentence} ({label})" for sentence in (part or {}).get("undefined", ())]
    lines += filter(None, [below_majority(result)])
    if result.get("folds"):
        lines.append(
            f"{len(result['folds'])} folds: each example was scored once, by a run that was not trained on it; the "
            "spread is over seeds, each of which has its own folds"
        )
    lines += class_lines(result.get("classes") or {})
    texts = (languages_text(result), calibration_text(result), layer_weights_text(result))
    lines += filter(None, texts)
    for label, part in sides:
        if part and part.get("learning_rate_edge"):
            edge = edge_text(part["learning_rate"], part["learning_rate_edge"])
            lines.append(f"warning: {edge} (the rate {label}); extend learning_rates")
    search = search_text(result.get("learning_rates"))
    lines += [f"{search}, chosen separately for run and control"] if search else []
    truncated = {split: number for split, number in result.get("num_truncated", {}).items() if number}
    if truncated:
        # Each seed draws its own training examples; the count covers all seeds.
        remarks_by_split = {"train": " (all seeds together)"} if result.get("n", 1) > 1 else {}
        counts = ", ".join(f"{n:,} in {split}{remarks_by_split.get(split, '')}" for split, n in truncated.items())
        lines.append(f"examples truncated to max_length: {counts}")
    if "num_train" in result:
        lines.append(
            f"{result['num_train']:,} training examples, {count(result['num_parameters'])} parameters, "
            f"{duration(result['seconds'])}; {result['chosen_by']}"
        )
    return lines


def _others(part: Result, metrics: Sequence[str]) -> list[str]:
    scores = other_metrics(part, metrics)
    return [format_metric(scores[name].mean, name) if name in scores else "" for name in metrics[1:]]


def _cells(part: Result, metric: str, metrics: Sequence[str]) -> list[str]:
    deviation = part.get("deviation")
    rate = part.get("learning_rate")
    return [
        format_metric(part["mean"], metric),
        "" if deviation is None else format_metric(deviation, metric),
        format_metric(part["median"], metric),
        *_others(part, metrics),
        str(part["n"]),
        *([] if rate is None else [f"{rate:g}"]),
    ]
