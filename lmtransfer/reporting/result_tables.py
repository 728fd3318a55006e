"""Builds the tables of a report: the table of all runs, and the points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.reporting.runs.details import RunCost, final_lines, search_text
from lmtransfer.reporting.runs.entries import Entry, distinct_names, make_entries
from lmtransfer.reporting.runs.scores import (
    control_part,
    other_metrics,
)
from lmtransfer.reporting.runs.sweeps import Sweep, SweepPoint, make_sweep, parse_values, value_text
from lmtransfer.reporting.table import (
    Cell,
    Group,
    Line,
    ReportTable,
    TableColumn,
    difference_cells,
    metric_heading,
    metrics_cell,
    plain_table,
    print_table,
    report_console,
    score_cell,
    score_text,
)
from lmtransfer.reporting.verdict_text import detectable_text, needed_text, short_text
from lmtransfer.system.printable import count, duration, format_metric, memory
from lmtransfer.verdicts.conditions import Condition, condition
from lmtransfer.verdicts.spread import Spread

_TRANSFER_ORDER = ("majority", "baseline", "control", "frozen", "bitfit", "lora", "finetuned")

_DIFFERENCE = TableColumn("difference from control", ("difference", "({interval})"))
#: Columns for Markdown and LaTeX, with one line of text per run.
WIDE = (
    TableColumn("run", ("run", "({state})")),
    TableColumn("model"),
    TableColumn("objective"),
    TableColumn("corpus"),
    TableColumn("task"),
    TableColumn("transfer"),
    TableColumn("seeds"),
    TableColumn("metric"),
    TableColumn("mean", ("mean", "reason")),
    TableColumn("median"),
    TableColumn("other metrics", separator=", "),
    _DIFFERENCE,
    TableColumn("verdict"),
    TableColumn("difference from baseline", ("difference from baseline", "({interval to baseline})")),
    TableColumn("verdict against baseline", ("verdict to baseline",)),
    TableColumn("smallest detectable"),
    TableColumn("seeds needed"),
    TableColumn("pretraining", ("{pretraining tokens} tokens", "pretraining time"), separator=", "),
    TableColumn("parameters"),
    TableColumn("trained parameters", ("trained parameters", "({share})")),
    TableColumn("memory"),
    TableColumn("time per seed"),
    TableColumn("tokens/s"),
)
#: Columns for the HTML page, which has a heading per group and shows model, objective and corpus below the run's name.
PAGE = (
    TableColumn("run", ("run", "({state})"), notes=("weights",), problem="warning", first="ascending"),
    TableColumn("transfer", notes=("{several seeds} seeds",), first="ascending"),
    TableColumn("score", ("mean", "reason"), notes=("median {median}", "other metrics"), first="descending"),
    TableColumn(
        "difference from control",
        ("difference",),
        notes=("({interval})", "verdict", "detectable: {smallest detectable}", "seeds needed: {seeds needed}"),
        first="descending",
    ),
    TableColumn(
        "difference from word counts",
        ("difference to baseline",),
        notes=("from {better baseline}", "({interval to baseline})", "verdict to baseline"),
        first="descending",
    ),
    TableColumn("pretraining tokens", first="ascending"),
    TableColumn("pretraining time", first="ascending"),
    TableColumn("pretraining FLOP", first="ascending"),
    TableColumn("parameters", first="ascending"),
    TableColumn("trained parameters", notes=("share",), first="ascending"),
    TableColumn("memory", first="ascending"),
    TableColumn("time per seed", first="ascending"),
    TableColumn("tokens/s", first="descending"),
)
#: Columns for a terminal of 100 characters, with a few lines of text per run.
NARROW = (
    TableColumn("run", notes=("weights", "reason", "warning"), width=(18, None)),
    TableColumn("transfer", notes=("{several seeds} seeds",), width=(9, 9)),
    TableColumn(
        "mean",
        ("mean", "state without score"),
        notes=("median {median}", "other metrics", "state of score"),
        width=(12, 13),
        has_unit=True,
    ),
    TableColumn(
        "difference from control",
        ("difference",),
        notes=("interval", "verdict", "detectable: {smallest detectable for now}", "seeds needed: {seeds needed}")
        + ("from {difference from baseline}", "interval to baseline", "verdict to baseline"),
        width=(14, 14),
    ),
    TableColumn(
        "pretraining", ("{pretraining tokens} tokens",), notes=("pretraining time", "{tokens/s} tok/s"), width=(11, 12)
    ),
    TableColumn("parameters", notes=("{share} trained",), width=(10, 10)),
    TableColumn("memory, time", ("memory",), notes=("{time per seed} a seed",), width=(7, 11)),
)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row of the table.

    Attributes:
        entry: the run; for a baseline or a control, the run's entry with the score replaced.
        run: the name of the run or of the baseline, or "majority".
        label: ``run``, followed by the transfer method if comparable runs share the name.
        other_metrics: the scores by the task's metrics other than the main one.
        note: a remark about an unfinished or damaged run, or about its score.
    """

    entry: Entry
    run: str
    label: str
    other_metrics: Mapping[str, Spread]
    note: str = ""


def table_rows(entries: Sequence[Entry]) -> list[ReportRow]:
    """Build all rows: for each task, baselines, controls, probes and finetuned runs; then pretraining runs."""
    names = distinct_names(entries)
    groups: dict[tuple[bool, str, str, float], dict[tuple[str, str], ReportRow]] = {}
    for entry in entries:
        place = (entry.is_pretraining, entry.task, entry.split, float(entry.num_train or "inf"))
        rows = groups.setdefault((True, "", "", 0.0) if entry.is_pretraining else place, {})
        if entry.majority is not None:
            rows.setdefault(("majority", ""), _baseline(entry, "majority", "majority", condition([entry.majority])))
        for name, scores in entry.baseline_conditions.items():
            same = rows.get(("baseline", name))
            # Other seeds may have other examples.
            if same is None or same.entry.condition is None or len(scores.scores) > len(same.entry.condition.scores):
                rows["baseline", name] = _baseline(entry, name, "baseline", scores)
        own = entry.control_condition
        if own is not None and not any(other.is_control and other.condition is own for other in entries):
            rows["control", entry.run.key] = _baseline(entry, f"{names[entry.run.key]} control", "control", own)
        note = _note(entry)
        rows["run", entry.run.key] = ReportRow(entry, entry.name, names[entry.run.key], entry.other_metrics, note)
    return [row for group in sorted(groups) for row in sorted(groups[group].values(), key=_order)]


def _order(row: ReportRow) -> tuple[int, str]:
    transfer = row.entry.transfer
    place = _TRANSFER_ORDER.index(transfer) if transfer in _TRANSFER_ORDER else len(_TRANSFER_ORDER)
    return place, row.run


def _baseline(entry: Entry, name: str, transfer: str, scores: Condition) -> ReportRow:
    is_control, result = transfer == "control", entry.run.result
    node = control_part(result)
    if not is_control:
        node = {"metrics": result.get("majority")} if transfer == "majority" else result["baselines"][name]
    shared = replace(
        entry,
        run=replace(entry.run, state="finished"),
        model=entry.model if is_control else "",
        objective="",
        corpus="",
        transfer=transfer,
        condition=scores,
        difference=None,
        better_baseline="",
        baseline_difference=None,
        pretraining_tokens=None,
        pretraining_seconds=None,
        num_parameters=entry.num_parameters if is_control else None,
        tokens_per_second=None,
        cost=RunCost(),
    )
    note = "; ".join(_remarks(replace(entry, condition=scores), node)) if is_control else ""
    return ReportRow(shared, name, name, other_metrics(node, entry.metrics), note)


def _note(entry: Entry) -> str:
    notes = [problem for run in (entry.run, *entry.seeds, *entry.controls) for problem in run.problems]
    notes += _remarks(entry, entry.run.result)
    notes += final_lines(entry.run.result)[-1:]
    notes += [entry.without_control] if entry.without_control else []
    weights = entry.run.result.get("weights") if entry.is_pretraining else None
    notes += [f"weights: {weights}"] if weights else []
    if entry.run.state == "unfinished":
        num_finished = sum(seed.state == "finished" for seed in entry.seeds)
        if entry.seeds:
            notes.insert(0, f"{num_finished} of {len(entry.seeds)} seeds finished so far")
        elif entry.run.metrics:
            last = entry.run.metrics[-1]
            step, loss = last.get("step"), last.get("loss")
            at = "at step " + ("?" if step is None else f"{step:,.0f}")
            notes.insert(0, at + ("" if loss is None else f", loss {loss:.3f}"))
    return "; ".join(notes)


def _remarks(entry: Entry, result: Mapping[str, Any]) -> list[str]:
    """List warnings about a score; ``result`` may be a result's entry for the control."""
    score, remarks = entry.score, []
    if collapsed := int(result.get("collapsed") or 0):  # a mean can hide this
        several = f"{collapsed} of {score.n} seeds predict" if score is not None and score.n > 1 else "predicts"
        remarks.append(f"{several} the same label for every example")
    remarks += result.get("undefined") or []
    if score is not None and entry.majority is not None and entry.has_verdicts:
        remarks += ["worse than the majority"] if entry.is_worse(score.mean, entry.majority) else []
    grid = None if entry.is_pretraining else entry.run.config.get("learning_rates")
    search = search_text(grid, result.get("learning_rate"))
    return [*remarks, *([search] if search else [])]


def results_table(rows: Sequence[ReportRow]) -> ReportTable:
    """Build the table of all runs, by groups of comparable runs, with the columns ``WIDE``."""
    names = dict.fromkeys(row.entry.group for row in rows)
    return ReportTable(
        "All results", WIDE, tuple(_group(name, [row for row in rows if row.entry.group == name]) for name in names)
    )


def _group(name: str, rows: Sequence[ReportRow]) -> Group:
    metric = next((row.entry.metric for row in rows if row.entry.metric), "")
    return Group(tuple(map(_line, rows)), name, metric_heading(metric, of_pretraining=name == "pretraining"))


def _line(row: ReportRow) -> Line:
    entry, score, metric, cost = row.entry, row.entry.score, row.entry.metric or "", row.entry.cost
    state, is_finished = entry.run.state, entry.run.state == "finished"
    has_several_seeds = score is not None and score.n > 1
    seeds_needed = needed_text(entry.difference)
    to_baseline = difference_cells(entry.baseline_difference, metric)
    texts = {
        "run": row.run,
        "state": "" if is_finished else state,
        "state without score": state if score is None else "",
        "state of score": "" if is_finished or score is None else state,
        "reason": row.note if score is None else "",
        "warning": row.note if score is not None else "",
        "model": entry.model,
        "objective": entry.objective,
        "corpus": entry.corpus,
        "weights": " ".join(filter(None, (entry.model, entry.objective, entry.corpus))),
        "task": "" if entry.is_pretraining else entry.group,
        "transfer": entry.transfer,
        "seeds": "" if score is None else str(score.n),
        "several seeds": str(score.n) if score is not None and has_several_seeds else "",
        "metric": metric_heading(metric, of_pretraining=entry.is_pretraining),
        "median": format_metric(score.median, metric) if score is not None and has_several_seeds else "",
        "smallest detectable": detectable_text(entry.difference, metric),
        "smallest detectable for now": detectable_text(entry.difference, metric) if seeds_needed else "",
        "seeds needed": seeds_needed,
        "share": cost.share_text,
        "better baseline": entry.better_baseline,
    }
    cells = {
        "mean": score_cell(score, metric),
        "other metrics": metrics_cell(row.other_metrics),
        **difference_cells(entry.difference, metric),
        **{f"{name} to baseline": cell for name, cell in to_baseline.items()},
        "pretraining tokens": _number(entry.pretraining_tokens, count),
        "pretraining time": _number(entry.pretraining_seconds, duration),
        "parameters": _number(entry.num_parameters, count),
        "trained parameters": _number(cost.num_trained, count),
        "memory": _number(cost.peak_memory, memory),
        "time per seed": _number(cost.seconds, duration),
        "tokens/s": _number(entry.tokens_per_second, count),
    }
    kind = entry.transfer if entry.transfer in ("majority", "baseline", "control") else ""
    if entry.source is not None and not kind:
        cells["pretraining FLOP"] = _number(entry.source.result.get("flops"), "{:.1e}".format)
    if to_baseline:
        difference = to_baseline["difference"]
        cells["difference from baseline"] = replace(difference, text=f"{entry.better_baseline}: {difference.text}")
    return Line({**{name: Cell(text) for name, text in texts.items()}, **cells}, kind)


def _number(value: float | None, text: Callable[[float], str]) -> Cell:
    return Cell() if value is None else Cell(text(value), sort=value)


def sweep_table(sweep: Sweep, *, failed: Sequence[str] = ()) -> ReportTable:
    """Build the table of a sweep, in which a star marks the best point.

    Args:
        failed: the labels of points without a run, such as ``train.steps=5,seed=1``, which are listed last.
    """
    of_pretraining = sweep.points[0].entries[0].is_pretraining
    metric = metric_heading(sweep.metric, of_pretraining=of_pretraining) if sweep.metric else "metric"
    columns = (
        *(TableColumn(key, (f"value {place}",)) for place, key in enumerate(sweep.keys)),
        TableColumn(metric, ("score", "star")),
        TableColumn("seeds"),
        TableColumn("difference from control", ("difference", "({interval})")),
        TableColumn("verdict"),
        TableColumn("other metrics", separator=", "),
        TableColumn("tokens/s"),
        TableColumn("run"),
    )
    lines = [_point_line(sweep, point) for point in sweep.points] + [_failed_line(sweep, label) for label in failed]
    title = f"sweep {sweep.name}: {len(sweep.points)} points, * marks the best"
    return ReportTable(f"Sweep {sweep.name}", columns, (Group(tuple(lines)),), title=title).without_empty()


def _point_line(sweep: Sweep, point: SweepPoint) -> Line:
    entry, metric, score = point.entries[0], sweep.metric or "", point.score
    alone = len(point.entries) == 1  # several runs have several differences
    texts = {
        **{f"value {place}": value_text(value) for place, value in enumerate(point.values)},
        "score": entry.run.state if score is None else score_text(score, metric),
        "star": "*" if point is sweep.best and len(sweep.points) > 1 else "",
        "seeds": "" if score is None else str(score.n),
        "tokens/s": "" if entry.tokens_per_second is None else count(entry.tokens_per_second),
        "run": ", ".join(entry.run.name for entry in point.entries),
    }
    cells = difference_cells(entry.difference, metric) | {"other metrics": metrics_cell(entry.other_metrics)}
    return Line({**{name: Cell(text) for name, text in texts.items()}, **(cells if alone else {})})


def _failed_line(sweep: Sweep, label: str) -> Line:
    """Build the line of a failed point from its label, ``key=value,key=value``."""
    settings = parse_values(label)
    values = {f"value {place}": settings[key] for place, key in enumerate(sweep.keys) if settings.get(key)}
    texts = {**(values or {"value 0": label}), "score": "failed", "run": label}
    return Line({name: Cell(text) for name, text in texts.items()})


def drop_run_names(table: ReportTable) -> ReportTable:
    """Drop the column of run names, which are too long for a terminal."""
    return table.select([column for column in table.columns if column.heading != "run"])


def print_points(command: str, run_dirs: Sequence[Path], failed: Sequence[str]) -> None:
    """Print the table at the end of a sweep."""
    if command in ("pretrain", "probe", "finetune"):
        folder = run_dirs[0].parent.name
        entries = make_entries([read_run(path, key=f"{folder}/{path.name}") for path in run_dirs])
        table = _pretrainings(folder, entries, failed) if command == "pretrain" else _transfers(entries, failed)
        print_table(table, report_console())


def _pretrainings(folder: str, entries: Sequence[Entry], failed: Sequence[str]) -> ReportTable:
    sweep = make_sweep(folder, entries)
    if sweep is not None:
        return drop_run_names(sweep_table(sweep, failed=failed))
    table = results_table(table_rows(entries)).select(NARROW)
    lines = tuple(Line({"run": Cell(label), "mean": Cell("failed")}) for label in failed)
    return replace(table, groups=(*table.groups, *([Group(lines)] if lines else [])))


def _transfers(entries: Sequence[Entry], failed: Sequence[str]) -> ReportTable:
    """Build a table with a line per point, best first, or in the sweep's order if the points have different tasks."""
    scored = [entry for entry in entries if entry.score is not None]
    is_one_task = len({entry.task_fingerprint or (entry.task, entry.metric) for entry in scored}) == 1
    rows = []
    for entry in sorted(scored, key=attrgetter("order")) if is_one_task else scored:
        assert entry.score is not None
        metric = entry.metric or ""
        deviation = "" if entry.score.deviation is None else format_metric(entry.score.deviation, metric)
        cells = [format_metric(entry.score.mean, metric), deviation, str(entry.score.n)]
        if entry.difference is not None and entry.control is not None:
            cells += [format_metric(entry.control.mean, metric), short_text(entry.difference, metric)]
        rows.append([entry.run.name, *([] if is_one_task else [metric]), *cells])
    others = [(entry.run.name, "not measured") for entry in entries if entry.score is None]
    others += [(label, "failed") for label in failed]
    rows += [[name, *([] if is_one_task else [""]), state] for name, state in others]
    mean = (scored[0].metric or "") if is_one_task else "mean"
    headings = ["run", *([] if is_one_task else ["metric"]), mean, "deviation", "seeds", "control", "difference"]
    return plain_table("Points", headings, rows)
