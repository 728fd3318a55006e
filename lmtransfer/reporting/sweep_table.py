"""The tables of sweeps: one line per point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmtransfer.reporting.render.cells import (
    difference_cells,
    metric_heading,
    metrics_cell,
    print_table,
    report_console,
    score_text,
)
from lmtransfer.reporting.results import NARROW, results_table
from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.reporting.runs.scores import difference_in
from lmtransfer.reporting.runs.sweeps import Sweep, SweepPoint, make_sweep, parse_values, value_text
from lmtransfer.reporting.table import Cell, Group, Line, ReportTable, TableColumn, plain_table
from lmtransfer.reporting.verdict_text import short_text
from lmtransfer.runs.result import RunResult
from lmtransfer.system.printable import count, format_metric
from lmtransfer.verdicts.holm import correct_column


def sweep_table(sweep: Sweep, *, failed: Sequence[str] = ()) -> ReportTable:
    """Build the table of a sweep, with a star at the best point.

    Args:
        failed: labels of the points without a run, such as ``train.steps=5,seed=1``; their lines come last.
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
    alone = len(point.entries) == 1  # each of several runs has its own difference
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
    """Build the line of a failed point; its label is ``key=value,key=value``."""
    settings = parse_values(label)
    values = {f"value {place}": settings[key] for place, key in enumerate(sweep.keys) if settings.get(key)}
    texts = {**(values or {"value 0": label}), "score": "failed", "run": label}
    return Line({name: Cell(text) for name, text in texts.items()})


def drop_run_names(table: ReportTable) -> ReportTable:
    """Drop the column of run names, which are too long for a terminal."""
    return table.select([column for column in table.columns if column.heading != "run"])


def print_points(command: str, run_dirs: Sequence[Path], failed: Sequence[str]) -> None:
    """Print the table at the end of a sweep.

    Args:
        command: the command that produced the runs; only training commands have a table.
        run_dirs: the finished runs.
        failed: labels of the failed points; their lines come last.
    """
    if command == "pretrain":
        print_table(_pretrainings(run_dirs, failed), report_console())
    elif command in ("probe", "finetune"):
        print_table(_transfers(run_dirs, failed), report_console())


def _pretrainings(run_dirs: Sequence[Path], failed: Sequence[str]) -> ReportTable:
    folder = run_dirs[0].parent
    entries = make_entries([read_run(path, key=f"{folder.name}/{path.name}") for path in run_dirs])
    sweep = make_sweep(folder.name, entries)
    if sweep is not None:
        return drop_run_names(sweep_table(sweep, failed=failed))
    table = results_table(table_rows(entries)).select(NARROW)
    lines = tuple(Line({"run": Cell(label), "mean": Cell("failed")}) for label in failed)
    return replace(table, groups=(*table.groups, *([Group(lines)] if lines else [])))


def _transfers(run_dirs: Sequence[Path], failed: Sequence[str]) -> ReportTable:
    """Build a line per point, best first, or in the sweep's order if the tasks differ."""
    results = [(path.name, RunResult.read(path / "result.json").values()) for path in run_dirs]
    metrics = {str(result["main_metric"]) for _, result in results}
    tasks = {result.get("task_fingerprint") or (result["task"], result["main_metric"]) for _, result in results}
    is_one_task = len(tasks) == 1
    if is_one_task:
        results.sort(key=lambda pair: pair[1]["mean"], reverse=bool(results[0][1]["higher_is_better"]))
    differences = [difference_in(result) for _, result in results]
    corrected = iter(correct_column([difference for difference in differences if difference is not None]))
    rows = []
    for (label, result), difference in zip(results, differences, strict=True):
        metric = str(result["main_metric"])
        deviation = "" if result["deviation"] is None else format_metric(result["deviation"], metric)
        cells = [format_metric(result["mean"], metric), deviation, str(result["n"])]
        if difference is not None:
            cells += [format_metric(result["control"]["mean"], metric), short_text(next(corrected), metric)]
        rows.append([label, *([] if is_one_task else [metric]), *cells])
    rows += [[label, *([] if is_one_task else [""]), "failed"] for label in failed]
    mean = metrics.pop() if is_one_task else "mean"
    headings = ["run", *([] if is_one_task else ["metric"]), mean, "deviation", "seeds", "control", "difference"]
    return plain_table("Points", headings, rows)
