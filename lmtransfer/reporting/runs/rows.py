"""The rows of the report's table: each task's baselines, controls, probes and finetuned runs, then pretraining runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmtransfer.reporting.runs.details import RunCost, search_text
from lmtransfer.reporting.runs.entry import Entry, distinct_names
from lmtransfer.reporting.runs.scores import is_worse, num_collapsed, number, other_metrics
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread, spread

_TRANSFER_ORDER = ("majority", "baseline", "control", "frozen", "bitfit", "lora", "finetuned")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row of the table.

    Attributes:
        entry: the run; for a baseline or a control, its run's entry with its own score.
        run: name of the run or of the baseline, or "majority".
        label: ``run``, with the way of transfer where comparable runs share the name.
        other_metrics: the scores by the task's metrics other than the main one.
        note: a remark about an unfinished or damaged run, or about its score.
    """

    entry: Entry
    run: str
    label: str
    other_metrics: Mapping[str, Spread]
    note: str = ""

    @property
    def group(self) -> str:
        """The group of comparable rows: task, split and number of labels, or "pretraining"."""
        return self.entry.group

    @property
    def transfer(self) -> str:
        """The way of transfer, or "majority", "baseline", "control"; empty for pretraining."""
        return self.entry.transfer

    @property
    def metric(self) -> str:
        """The name of the metric; empty if nothing was scored."""
        return self.entry.metric or ""

    @property
    def score(self) -> Spread | None:
        """The metric over seeds."""
        return self.entry.score

    @property
    def difference(self) -> Difference | None:
        """The difference from the control."""
        return self.entry.difference


def table_rows(entries: Sequence[Entry]) -> list[ReportRow]:
    """Build all rows, tasks first, with comparable rows together."""
    names = distinct_names(entries)
    groups: dict[tuple[bool, str, str, float], list[ReportRow]] = {}
    for entry in entries:
        place = (entry.is_pretraining, entry.task, entry.split, float(entry.num_train or "inf"))
        rows = groups.setdefault((True, "", "", 0.0) if entry.is_pretraining else place, [])
        if entry.majority is not None and all(row.transfer != "majority" for row in rows):
            rows.append(_baseline(entry, "majority", "majority", spread((entry.majority,))))
        for name, score in entry.baselines.items():
            same = next(
                (place for place, row in enumerate(rows) if (row.run, row.transfer) == (name, "baseline")), None
            )
            row = _baseline(entry, name, "baseline", score)
            if same is None:
                rows.append(row)
            elif score.n > (rows[same].score or score).n:  # a group with other seeds has other examples
                rows[same] = row
        if entry.control is not None and not _is_elsewhere(entry, entries):
            rows.append(_baseline(entry, f"{names[entry.run.key]} control", "control", entry.control))
        rows.append(ReportRow(entry, entry.name, names[entry.run.key], entry.other_metrics, _note(entry)))
    return [row for group in sorted(groups) for row in sorted(groups[group], key=_position)]


def _is_elsewhere(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether the control of an entry is a separate run with its own row."""
    return any(other.is_control and other.score is entry.control for other in entries)


def _position(row: ReportRow) -> tuple[int, str]:
    is_ordered = row.transfer in _TRANSFER_ORDER
    return (_TRANSFER_ORDER.index(row.transfer) if is_ordered else len(_TRANSFER_ORDER), row.run)


def _baseline(entry: Entry, name: str, transfer: str, score: Spread) -> ReportRow:
    is_control, result = transfer == "control", entry.run.result
    node = {
        "control": result.get("control"),
        "majority": {"metrics": result.get("majority")},
        "baseline": (result.get("baselines") or {}).get(name),
    }[transfer]
    shared = replace(
        entry,
        run=replace(entry.run, state="finished"),
        model=entry.model if is_control else "",
        objective="",
        corpus="",
        transfer=transfer,
        score=score,
        difference=None,
        better_baseline="",
        baseline_difference=None,
        pretraining_tokens=None,
        pretraining_seconds=None,
        num_parameters=entry.num_parameters if is_control else None,
        tokens_per_second=None,
        cost=RunCost(),
    )
    note = "; ".join(_remarks(entry, node, score)) if is_control else ""
    return ReportRow(shared, name, name, other_metrics(node, entry.metrics), note)


def _note(entry: Entry) -> str:
    notes = [problem for run in (entry.run, *entry.seeds, *entry.controls) for problem in run.problems]
    notes += _remarks(entry, entry.run.result, entry.score)
    notes += [entry.without_control] if entry.without_control else []
    weights = entry.run.result.get("weights") if entry.is_pretraining else None
    notes += [f"weights: {weights}"] if isinstance(weights, str) else []
    if entry.run.state == "unfinished":
        num_finished = sum(seed.state == "finished" for seed in entry.seeds)
        if entry.seeds:
            notes.insert(0, f"{num_finished} of {len(entry.seeds)} seeds finished so far")
        elif entry.run.metrics:
            last = entry.run.metrics[-1]
            step, loss = number(last.get("step")), number(last.get("loss"))
            notes.insert(0, "at step " + ("?" if step is None else f"{step:,.0f}") + _loss(loss))
    return "; ".join(notes)


def _remarks(entry: Entry, result: Any, score: Spread | None) -> list[str]:
    """List warnings about a score; ``result`` may be the control's part of a result."""
    rate = number(result.get("learning_rate")) if isinstance(result, Mapping) else None
    grid = None if entry.is_pretraining else entry.run.config.get("learning_rates")
    search = search_text(grid, rate)
    is_below = (
        score is not None
        and entry.majority is not None
        and is_worse(score.mean, entry.majority, entry.metric or "", entry.run.result)
    )
    is_not_above = (
        score is not None
        and entry.baseline is not None
        and not is_worse(entry.baseline.mean, score.mean, entry.metric or "", entry.run.result)
    )
    return [
        *_collapse(result, score),
        *_undefined(result),
        *(["worse than the majority"] if is_below else []),
        *([f"not above {entry.better_baseline}, which counts words"] if is_not_above else []),
        *([search] if search else []),
    ]


def _collapse(result: Any, score: Spread | None) -> list[str]:
    """Warn if seeds give every example the same answer, which a mean can hide; ``result`` may be the control's part."""
    collapsed = num_collapsed(result)
    if collapsed == 0:
        return []
    if score is None or score.n == 1:
        return ["predicts the same label for every example"]
    return [f"{collapsed} of {score.n} seeds predict the same label for every example"]


def _undefined(result: Any) -> list[str]:
    """Return the sentences of a result about metrics that are undefined on its answers."""
    sentences = result.get("undefined") if isinstance(result, Mapping) else None
    return [sentence for sentence in sentences if isinstance(sentence, str)] if isinstance(sentences, list) else []


def _loss(loss: float | None) -> str:
    return "" if loss is None else f", loss {loss:.3f}"
