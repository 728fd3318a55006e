"""The table of a study: for each recipe its cost, its pretraining losses and its results on the tasks."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from lmtransfer.reporting.render.cells import PLUS_MINUS, difference_text, metric_heading, score_text, without_empty
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.scores import number
from lmtransfer.reporting.verdict_text import verdict_text
from lmtransfer.study.plan import PRETRAIN, Plan
from lmtransfer.system.durable import write_text
from lmtransfer.system.units import count, shown
from lmtransfer.verdicts.difference import Difference

#: Losses that are the cross entropy of each token given all tokens before it (or all tokens after it).
_LANGUAGE_MODELS = ("lm", "backward_lm", "bilm")
#: With more transfers than this, a table with one line for each recipe is too wide.
_MANY = 3
_TRANSFER_HEADINGS = (
    "",
    "task",
    "metric",
    "majority",
    "baseline",
    "control",
    "pretrained",
    "difference",
    "to baseline",
    "cost",
)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One recipe.

    Attributes:
        recipe: name of the recipe.
        pretraining: its pretraining run; None if there is none yet.
        transfers: the existing runs of its transfers, by name.
    """

    recipe: str
    pretraining: Entry | None
    transfers: Mapping[str, Entry]

    @property
    def losses(self) -> Mapping[str, float]:
        """Validation losses and metrics by name."""
        metrics = {} if self.pretraining is None else self.pretraining.run.result.get("metrics", {})
        return {name: value for name, given in metrics.items() if (value := number(given)) is not None}

    @property
    def perplexity(self) -> tuple[str, float] | None:
        """Name and value of the perplexity for each token, if the objective is a language model."""
        for name in _LANGUAGE_MODELS:
            if name in self.losses:
                return name, math.exp(min(self.losses[name], 700.0))
        return None

    @property
    def accuracy(self) -> tuple[str, float] | None:
        """Name and value of the first accuracy among the validation metrics."""
        found = (pair for pair in self.losses.items() if pair[0].endswith("_accuracy"))
        return next(found, None)


def read_rows(plan: Plan) -> list[StudyRow]:
    """The rows of all recipes whose runs have started, read from the run directories."""
    if not any(job.run.is_dir() for job in plan.jobs):
        return []
    entries = {entry.run.path: entry for entry in make_entries(collect(plan.folder))} if _has_runs(plan) else {}
    for run in {job.run for job in plan.jobs if job.shared}:
        entries |= {entry.run.path: entry for entry in make_entries(collect(run))}
    rows = []
    for recipe in plan.recipes:
        jobs = {job.stage: job.run.resolve() for job in plan.jobs if job.recipe == recipe}  # as entries have it
        found = {stage: entries[run] for stage, run in jobs.items() if run in entries}
        if found:
            rows.append(StudyRow(recipe, found.pop(PRETRAIN, None), found))
    return rows


def _has_runs(plan: Plan) -> bool:
    """Whether one of the study's own runs has begun."""
    return any(job.run.is_dir() for job in plan.jobs if not job.shared)


def write_table(rows: Sequence[StudyRow], plan: Plan) -> Path:
    """Write the table as Markdown, CSV and JSON; return the common path without the suffix."""
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


def _record(row: StudyRow, plan: Plan) -> dict[str, Any]:
    """One row as plain numbers: fractions, tokens, seconds."""
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
        if entry.majority is not None:
            record[f"{name}_majority"] = entry.majority
        record |= {f"{name}_{baseline}": score.mean for baseline, score in entry.baselines.items()}
        record |= _verdict(name, entry.difference) | _verdict(f"{name}_to_baseline", entry.baseline_difference)
    return record


def _verdict(name: str, difference: Difference | None) -> dict[str, Any]:
    """A difference and its verdict as plain values."""
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
    """The ends of the corrected interval, by name."""
    return zip(("low", "high"), difference.interval or (None, None), strict=True)


def markdown(rows: Sequence[StudyRow], plan: Plan) -> str:
    """The table with one line for each recipe; with many transfers, one line for each transfer."""
    if len(plan.transfers) > _MANY:
        return _transfers_markdown(rows, plan)
    headings = ["", "model", "objective", "parameters", "tokens", "tokens/s", "loss", "perplexity", "accuracy"]
    for name in plan.transfers:
        metric = _metric(rows, name)
        headings += [f"{name}: {metric}", "control", "difference", "baseline", "to baseline", "cost"]
    cells = []
    for row in rows:
        entry, perplexity, accuracy = row.pretraining, row.perplexity, row.accuracy
        line = [
            row.recipe,
            entry.model if entry else "",
            entry.objective if entry else "",
            count(entry.num_parameters) if entry and entry.num_parameters else "",
            count(entry.pretraining_tokens) if entry and entry.pretraining_tokens else "",
            count(entry.tokens_per_second) if entry and entry.tokens_per_second else "",
            _loss(row),
            "" if perplexity is None else f"{perplexity[1]:,.1f}",
            "" if accuracy is None else f"{100 * accuracy[1]:.1f} %",
        ]
        for name in plan.transfers:
            found = row.transfers.get(name)
            line += [*_transfer_cells(found), *_baseline_cells(found), _cost(found)]
        cells.append(line)
    shown_headings, shown_cells = without_empty(headings, cells)
    lines = [shown_headings, ["---"] * len(shown_headings), *shown_cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{_caption()}\n"


def terminal_rows(rows: Sequence[StudyRow], plan: Plan) -> Table:
    """The table for a terminal of 100 columns: three lines for each recipe; with many transfers, one line for each."""
    if len(plan.transfers) > _MANY:
        return _transfers_table(rows, plan)
    table = Table(
        title=f"study {plan.name}",
        title_justify="left",
        title_style="bold",
        caption=_caption(),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", overflow="fold", min_width=15)
    table.add_column("pretraining", overflow="fold")
    table.add_column("validation", overflow="fold")
    for name in plan.transfers:
        table.add_column(f"{name}\n{_metric(rows, name)}", overflow="fold")
    for row in rows:
        entry, perplexity, accuracy = row.pretraining, row.perplexity, row.accuracy
        cost = [f"{count(entry.num_parameters)} parameters"] if entry and entry.num_parameters else []
        cost += [f"{count(entry.pretraining_tokens)} tokens"] if entry and entry.pretraining_tokens else []
        cost += [f"{count(entry.tokens_per_second)} tok/s"] if entry and entry.tokens_per_second else []
        learned = [f"loss {_loss(row)}"] if _loss(row) else [] if entry is None else [entry.run.state]
        learned += [] if perplexity is None else [f"perplexity {perplexity[1]:,.1f}"]
        learned += [] if accuracy is None else [f"accuracy {100 * accuracy[1]:.1f} %"]
        what = [] if entry is None else [entry.model, entry.objective]
        columns = [[row.recipe, *what], cost, learned]
        for name in plan.transfers:
            found = row.transfers.get(name)
            score, control, difference = _transfer_cells(found)
            baseline, counted = _baseline_cells(found)
            lines = [score, *([f"control {control}", difference] if control else [])]
            columns.append([*lines, *([f"baseline {baseline}", counted] if baseline else []), _cost(found)])
        first = [column[0] if column else "" for column in columns]
        rest = [column[1:] for column in columns]
        styles = ["bold", "", "", *["bold"] * len(plan.transfers)]
        table.add_row(
            *(
                Text.assemble((top, style), *((f"\n{line}", "dim") for line in lines if line))
                for top, style, lines in zip(first, styles, rest, strict=True)
            )
        )
        table.add_section()
    return table


def _transfer_cells(entry: Entry | None) -> list[str]:
    """Score, score of the control, difference with its verdict."""
    if entry is None or entry.metric is None or entry.score is None:
        return ["" if entry is None else entry.run.state, "", ""]
    difference = difference_text(entry.difference, entry.metric)
    verdict = f" {verdict_text(entry.difference)}".rstrip()
    return [score_text(entry.score, entry.metric), score_text(entry.control, entry.metric), difference + verdict]


def _baseline_cells(entry: Entry | None) -> list[str]:
    """The better baseline with its score, and the difference to it with its verdict."""
    if entry is None or entry.metric is None or entry.baseline is None:
        return ["", ""]
    difference = difference_text(entry.baseline_difference, entry.metric)
    verdict = verdict_text(entry.baseline_difference, entry.metric)
    return [f"{score_text(entry.baseline, entry.metric)} ({entry.better_baseline})", f"{difference} {verdict}".strip()]


def _cost(entry: Entry | None) -> str:
    return "" if entry is None else ", ".join(entry.cost.in_short)


def _loss(row: StudyRow) -> str:
    return shown(row.losses["loss"], "loss") if "loss" in row.losses else ""


def _metric(rows: Sequence[StudyRow], transfer: str) -> str:
    found = (row.transfers[transfer].metric for row in rows if transfer in row.transfers)
    return metric_heading(next((metric for metric in found if metric), ""))


def _caption() -> str:
    """The caption below the table, which explains the numbers."""
    return (
        f"Mean {PLUS_MINUS} standard deviation over seeds. Control: the same architecture without pretraining. "
        "Baseline: the better one of those that count words, on the same training examples. "
        "Difference: with the 95 % interval that decides the verdict, corrected for the whole column (Holm). Cost: "
        "the share of the parameters that is trained on the task, the largest memory, the time of one seed. Losses of "
        "different objectives cannot be compared. Perplexities of different vocabularies cannot be compared either."
    )


def _transfers_markdown(rows: Sequence[StudyRow], plan: Plan) -> str:
    """The table with one line for each transfer, as Markdown."""
    lines = [_TRANSFER_HEADINGS, ("---",) * len(_TRANSFER_HEADINGS), *_transfer_lines(rows, plan)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{_caption()}\n"


def _transfers_table(rows: Sequence[StudyRow], plan: Plan) -> Table:
    """The table with one line for each transfer, for a terminal."""
    table = Table(
        *_TRANSFER_HEADINGS,
        title=f"study {plan.name}",
        title_justify="left",
        title_style="bold",
        caption=_caption(),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for line in _transfer_lines(rows, plan):
        table.add_row(*line)
    return table


def _transfer_lines(rows: Sequence[StudyRow], plan: Plan) -> Iterator[tuple[str, ...]]:
    for row in rows:
        for name in plan.transfers:
            entry = row.transfers.get(name)
            score, control, difference = _transfer_cells(entry)
            metric = "" if entry is None or entry.metric is None else entry.metric
            majority = "" if entry is None or entry.majority is None else shown(entry.majority, metric)
            baseline, counted = _baseline_cells(entry)
            scores = (majority, baseline, control, score, difference, counted)
            yield row.recipe, name, metric_heading(metric), *scores, _cost(entry)
