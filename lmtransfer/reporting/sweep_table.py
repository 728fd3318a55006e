"""The table at the end of a sweep: one row for each point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from lmtransfer.reporting.render.terminal import report_console, sweep_table, terminal_table
from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.reporting.runs.scores import difference_in
from lmtransfer.reporting.runs.sweeps import make_sweep
from lmtransfer.reporting.verdict_text import short
from lmtransfer.runs.result import RunResult
from lmtransfer.system.units import shown
from lmtransfer.verdicts.holm import corrected


def print_points(command: str, run_dirs: Sequence[Path], failed: Sequence[str]) -> None:
    """Print the table of a sweep.

    Args:
        command: the command that made the runs; those that do not train have no table.
        run_dirs: the finished runs.
        failed: labels of the points that failed; their rows are last.
    """
    if command == "pretrain":
        report_console().print(_pretraining_table(run_dirs, failed))
    elif command in ("probe", "finetune"):
        report_console().print(_transfer_table(run_dirs, failed))


def _pretraining_table(run_dirs: Sequence[Path], failed: Sequence[str]) -> Table:
    folder = run_dirs[0].parent
    entries = make_entries([read_run(path, key=f"{folder.name}/{path.name}") for path in run_dirs])
    sweep = make_sweep(folder.name, entries)
    if sweep is not None:
        return sweep_table(sweep, failed=failed)
    table = terminal_table(table_rows(entries))
    for label in failed:
        table.add_row(label, "", "failed")
    return table


def _transfer_table(run_dirs: Sequence[Path], failed: Sequence[str]) -> Table:
    """One row for each point: best first, or in the order of the sweep if the tasks differ."""
    results = [(path.name, RunResult.read(path / "result.json").values()) for path in run_dirs]
    metrics = {str(result["main_metric"]) for _, result in results}
    tasks = {result.get("task_fingerprint") or (result["task"], result["main_metric"]) for _, result in results}
    one_task = len(tasks) == 1
    if one_task:
        results.sort(key=lambda pair: pair[1]["mean"], reverse=bool(results[0][1]["higher_is_better"]))
    metric_column = metrics.pop() if one_task else "mean"
    head = ["run", *([] if one_task else ["metric"]), metric_column, "deviation", "seeds", "control", "difference"]
    table = Table(*head, box=box.SIMPLE_HEAD)
    found = [difference_in(result) for _, result in results]
    together = iter(corrected([difference for difference in found if difference is not None]))
    for (label, result), difference in zip(results, found, strict=True):
        metric = str(result["main_metric"])
        deviation = "" if result["deviation"] is None else shown(result["deviation"], metric)
        cells = [shown(result["mean"], metric), deviation, str(result["n"]), "", ""]
        if difference is not None:
            cells[3:] = [shown(result["control"]["mean"], metric), short(next(together), metric)]
        table.add_row(label, *([] if one_task else [metric]), *cells)
    for name in failed:
        table.add_row(name, *([] if one_task else [""]), "failed")
    return table
