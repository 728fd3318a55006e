"""The table of a study: the cost, pretraining losses and task results of each recipe."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.reporting.render.cells import difference_text, metric_heading, metrics_cell, score_text
from lmtransfer.reporting.render.markdown import markdown_table
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.table import PLUS_MINUS, Cell, Column, Group, Line, Table
from lmtransfer.reporting.verdict_text import verdict_text
from lmtransfer.study.plan import PRETRAIN, StudyPlan
from lmtransfer.system.durable import write_text
from lmtransfer.system.units import count, format_metric
from lmtransfer.verdicts.difference import Difference

#: Losses that are the cross entropy of each token given all preceding (or all following) tokens.
_LANGUAGE_MODELS = ("lm", "backward_lm", "bilm")
#: Maximum number of transfers for a table with one line per recipe; with more it is too wide.
_MANY = 3
_NOTE = (
    f"Mean {PLUS_MINUS} standard deviation over seeds. Control: the same architecture without pretraining. "
    "Baseline: the better of the baselines that count words, on the same training examples. "
    "Difference: with the 95 % interval that decides the verdict, corrected for the whole column (Holm). Cost: "
    "the share of parameters trained on the task, the peak memory, the time per seed. Losses of different objectives "
    "cannot be compared, and neither can perplexities of different vocabularies."
)
#: The columns of the table with one line per transfer.
_TRANSFERS = (
    Column("", ("recipe",)),
    Column("task", ("transfer",)),
    *map(Column, ("metric", "majority", "baseline", "control")),
    Column("pretrained", ("score",), notes=("other metrics",)),
    *map(Column, ("difference", "to baseline", "cost")),
)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One recipe.

    Attributes:
        recipe: name of the recipe.
        pretraining: its pretraining run, if it exists yet.
        transfers: the existing runs of its transfers, by name.
    """

    recipe: str
    pretraining: Entry | None
    transfers: Mapping[str, Entry]

    @property
    def losses(self) -> Mapping[str, float]:
        """The validation losses and metrics, by name."""
        metrics = {} if self.pretraining is None else self.pretraining.run.result.get("metrics", {})
        return {name: value for name, metric in metrics.items() if (value := number(metric)) is not None}

    @property
    def perplexity(self) -> tuple[str, float] | None:
        """Name and value of the per-token perplexity, if the objective is a language model."""
        for name in _LANGUAGE_MODELS:
            if name in self.losses:
                return name, math.exp(min(self.losses[name], 700.0))
        return None

    @property
    def accuracy(self) -> tuple[str, float] | None:
        """Name and value of the first accuracy among the validation metrics."""
        accuracies = (pair for pair in self.losses.items() if pair[0].endswith("_accuracy"))
        return next(accuracies, None)


def read_rows(plan: StudyPlan) -> list[StudyRow]:
    """Read the rows of all recipes whose runs have started."""
    if not any(job.run.is_dir() for job in plan.jobs):
        return []
    entries = {entry.run.path: entry for entry in make_entries(collect(plan.folder))} if _has_runs(plan) else {}
    for run in {job.run for job in plan.jobs if job.shared}:
        entries |= {entry.run.path: entry for entry in make_entries(collect(run))}
    rows = []
    for recipe in plan.recipes:
        jobs = {job.stage: job.run.resolve() for job in plan.jobs if job.recipe == recipe}  # like the paths of entries
        of_stages = {stage: entries[run] for stage, run in jobs.items() if run in entries}
        if of_stages:
            rows.append(StudyRow(recipe, of_stages.pop(PRETRAIN, None), of_stages))
    return rows


def _has_runs(plan: StudyPlan) -> bool:
    """Whether one of the study's own runs has begun."""
    return any(job.run.is_dir() for job in plan.jobs if not job.shared)


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
    """Convert a row to plain numbers: fractions, tokens, seconds."""
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
            record["validation_perplexity"] = row.perplexity[1]
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
    """Convert a difference and its verdict to plain values."""
    if difference is None:
        return {}
    return {
        f"{name}_difference": difference.delta,
        **{f"{name}_{end}": value for end, value in _ends(difference)},
        f"{name}_standard_error": difference.standard_error,
        f"{name}_p_value": difference.corrected_p_value,
        f"{name}_scope": difference.scope,
        f"{name}_detectable": difference.detectable,
        f"{name}_seeds_needed": difference.seeds_needed,
        f"{name}_verdict": difference.verdict,
    }


def _ends(difference: Difference) -> Iterator[tuple[str, float | None]]:
    """Return the limits of the corrected interval, by name."""
    return zip(("low", "high"), difference.interval or (None, None), strict=True)


def markdown(rows: Sequence[StudyRow], plan: StudyPlan) -> str:
    """Render the table as Markdown, with one line per recipe; with many transfers, one line per transfer."""
    table = study_table(rows, plan)
    if len(plan.transfers) <= _MANY:
        table = table.select(_wide(rows, plan)).without_empty()
    return f"{markdown_table(table)}\n{table.note}\n"


def study_table(rows: Sequence[StudyRow], plan: StudyPlan) -> Table:
    """Build the table for a terminal 100 characters wide, a group per recipe; with many transfers, a line for each."""
    title = f"study {plan.name}"
    if len(plan.transfers) > _MANY:
        lines = tuple(
            Line({"recipe": Cell(row.recipe), "transfer": Cell(name), **_transfer(row.transfers.get(name))})
            for row in rows
            for name in plan.transfers
        )
        return Table(title, _TRANSFERS, (Group(lines),), title=title, note=_NOTE)
    groups = tuple(Group((_recipe(row),)) for row in rows)
    return Table(title, _narrow(rows, plan), groups, title=title, note=_NOTE)


def _wide(rows: Sequence[StudyRow], plan: StudyPlan) -> list[Column]:
    """Return the columns for Markdown."""
    names = ("model", "objective", "parameters", "tokens", "tokens/s", "loss", "perplexity", "accuracy")
    columns = [Column("", ("recipe",)), *map(Column, names)]
    for name in plan.transfers:
        columns.append(Column(f"{name}: {_metric(rows, name)}", (f"{name} score",)))
        columns.append(Column("other metrics", (f"{name} other metrics",), separator=", "))
        parts = ("control", "difference", "baseline", "to baseline", "cost")
        columns += [Column(part, (f"{name} {part}",)) for part in parts]
    return columns


def _narrow(rows: Sequence[StudyRow], plan: StudyPlan) -> tuple[Column, ...]:
    """Return the columns for a terminal."""
    return (
        Column("", ("recipe",), notes=("model", "objective"), width=(15, None), is_bold=True),
        Column("pretraining", ("{parameters} parameters",), notes=("{tokens} tokens", "{tokens/s} tok/s")),
        Column("validation", ("loss {loss}", "state"), notes=("perplexity {perplexity}", "accuracy {accuracy}")),
        *(
            Column(
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
    """Build a recipe's line: its pretraining, and its transfers under their names."""
    entry, perplexity, accuracy = row.pretraining, row.perplexity, row.accuracy
    texts = {
        "recipe": row.recipe,
        "loss": format_metric(row.losses["loss"], "loss") if "loss" in row.losses else "",
        "perplexity": "" if perplexity is None else f"{perplexity[1]:,.1f}",
        "accuracy": "" if accuracy is None else f"{100 * accuracy[1]:.1f} %",
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
    """Format a difference with its interval and its verdict."""
    return f"{difference_text(difference, metric)} {verdict_text(difference, metric)}".strip()


def _metric(rows: Sequence[StudyRow], transfer: str) -> str:
    metrics = (row.transfers[transfer].metric for row in rows if transfer in row.transfers)
    return metric_heading(next((metric for metric in metrics if metric), ""))
