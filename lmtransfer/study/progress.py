"""The progress of a study, read from its folder: finished, running, failed and waiting runs."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lmtransfer.errors import RunDirectoryError
from lmtransfer.launch.jobs import last_message, was_interrupted
from lmtransfer.reporting.runs.collect import COMMANDS
from lmtransfer.runs.create_and_lock import LOCK, writer
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.ledger import LedgerEntry, read_ledger
from lmtransfer.study.plan import PRETRAIN, job_key, stage_and_recipe
from lmtransfer.system.console import Console
from lmtransfer.system.units import duration

State = Literal["finished", "running", "failed", "interrupted", "waiting"]

_BUDGET = re.compile(r"train\.seconds=(\d+(?:\.\d*)?)")

_EVERY_SECONDS = 2.0
_MARKS = {"finished": "+", "running": ">", "failed": "x", "interrupted": "!", "waiting": "."}
_STYLES = {"running": "bold", "failed": "bold red", "waiting": "dim"}


@dataclass(frozen=True, slots=True)
class JobProgress:
    """One run of a study.

    Attributes:
        recipe: its row in the table.
        stage: ``pretrain``, or the name of a transfer.
        state: its state.
        seconds: wall-clock duration, so far or in total; None if it has not begun.
        left: estimated seconds until it ends; None if unknown.
        note: the last line of its output while it runs; the reason if it failed.
    """

    recipe: str
    stage: str
    state: State
    seconds: float | None = None
    left: float | None = None
    note: str = ""


def progress_of(folder: Path) -> list[JobProgress]:
    """Read the progress of a study's runs, in running order.

    The expected duration of a run is the mean duration of the finished runs of its stage; for a pretraining run with a
    time budget, it is that budget.

    Raises:
        RunDirectoryError: the folder is not that of a study, or the ledger is damaged.
    """
    ledger = read_ledger(folder) if folder.is_dir() else {}
    if not ledger:
        raise RunDirectoryError(f"{folder} is not a study's folder: it has no study.json with runs")
    jobs = [_job(folder, *stage_and_recipe(key), entry) for key, entry in ledger.items()]
    failed = {job.recipe for job in jobs if job.stage == PRETRAIN and job.state == "failed"}
    jobs = [
        replace(job, state="failed", note="its pretraining failed")
        if job.recipe in failed and job.state == "waiting"
        else job
        for job in jobs
    ]
    durations: dict[str, list[float]] = {}
    for job in jobs:
        if job.state == "finished" and job.seconds is not None:
            durations.setdefault(job.stage, []).append(job.seconds)
    budgets = {key: _budget(entry["overrides"]) for key, entry in ledger.items()}
    expected = [
        budgets[job_key(job.stage, job.recipe)]
        or (statistics.fmean(durations[job.stage]) if job.stage in durations else None)
        for job in jobs
    ]
    return [_with_time_left(job, whole) for job, whole in zip(jobs, expected, strict=True)]


def seconds_left(jobs: Sequence[JobProgress]) -> float | None:
    """Estimate the seconds until the last run ends; None if a run's duration is unknown.

    This assumes that the number of transfers at the same time stays as it is now, and that pretraining runs run alone.
    """
    unfinished = [job for job in jobs if job.state in ("running", "waiting", "interrupted")]
    if any(job.left is None for job in unfinished):
        return None
    alone = sum(job.left or 0.0 for job in unfinished if job.stage == PRETRAIN)
    transfers = [job for job in unfinished if job.stage != PRETRAIN]
    num_running = sum(job.state == "running" for job in transfers)
    left = [job.left or 0.0 for job in transfers]
    return alone + max([sum(left) / max(1, num_running), *left], default=0.0)


def _job(folder: Path, stage: str, recipe: str, entry: LedgerEntry) -> JobProgress:
    """Return the progress of a job."""
    run, before = _run_of(folder, stage, recipe, entry["overrides"]), entry.get("seconds")
    log = folder / "logs" / f"{stage}-{recipe}.log"
    if run is not None and RunDirectory(run).is_finished:
        try:
            result = RunDirectory(run).read_result()
            return JobProgress(recipe, stage, "finished", result.seconds if before is None else before)
        except RunDirectoryError as error:
            return JobProgress(recipe, stage, "failed", note=str(error))
    if run is not None and writer(run) is not None and log.is_file():
        seconds = (before or 0.0) + time.time() - _start_time(log, run)
        return JobProgress(recipe, stage, "running", seconds, note=last_message(log))
    failed = log.is_file() and "\nlmtransfer: " in "\n" + log.read_text(encoding="utf-8", errors="replace")
    if failed and not was_interrupted(log):
        return JobProgress(recipe, stage, "failed", note=last_message(log))
    return JobProgress(recipe, stage, "waiting" if run is None else "interrupted")


def _run_of(folder: Path, stage: str, recipe: str, overrides: Sequence[str]) -> Path | None:
    """Return the run directory of a job; None if there is none yet."""
    name = next((word.partition("=")[2] for word in overrides if word.startswith("name=")), recipe)
    commands = [stage] if stage in COMMANDS else [command for command in COMMANDS if command != PRETRAIN]
    return next((run for command in commands if (run := folder / command / name).is_dir()), None)


def _start_time(log: Path, run: Path | None) -> float:
    """Return the time at which a run started or resumed, in seconds since the epoch."""
    path = log if run is None else run / LOCK
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _budget(overrides: Sequence[str]) -> float | None:
    matches = [match for word in overrides if (match := _BUDGET.fullmatch(word))]
    return float(matches[-1][1]) if matches else None


def _with_time_left(job: JobProgress, whole: float | None) -> JobProgress:
    if job.state in ("finished", "failed") or whole is None:
        return job
    left = max(0.0, whole - (job.seconds or 0.0))
    return replace(job, left=left)


def watch(folder: Path, console: Console) -> list[JobProgress]:
    """Show the progress until no run is left; if the output is not a terminal, show it once.

    Returns:
        The last progress shown.
    """
    jobs = progress_of(folder)
    if not console.is_terminal:
        console.print(progress_table(jobs, folder))
        return jobs
    with Live(progress_table(jobs, folder), console=console, auto_refresh=False) as live:
        while any(job.state in ("running", "waiting") for job in jobs):
            time.sleep(_EVERY_SECONDS)
            jobs = progress_of(folder)
            live.update(progress_table(jobs, folder), refresh=True)
    return jobs


def progress_table(jobs: Sequence[JobProgress], folder: Path) -> Group:
    """Build a table with a line for each run, and a summary."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("", "recipe", "stage", "state", "time", "left"):
        table.add_column(heading, no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
    for job in jobs:
        table.add_row(
            _MARKS[job.state],
            Text(job.recipe),
            Text(job.stage),
            Text(job.state, _STYLES.get(job.state, "")),
            "" if job.seconds is None else duration(job.seconds),
            "" if job.left is None else duration(job.left),
            Text(job.note, "dim"),
        )
    return Group(table, Text(summary(jobs, folder), "bold"))


def summary(jobs: Sequence[JobProgress], folder: Path) -> str:
    """Summarize the progress in one line: ``masking_rate: 4 of 15 finished, 11 waiting; about 31 min left``."""
    counts = Counter(job.state for job in jobs)
    parts = [f"{counts['finished']} of {len(jobs)} finished"]
    parts += [f"{counts[state]} {state}" for state in ("running", "failed", "interrupted", "waiting") if counts[state]]
    left = seconds_left(jobs)
    ending = f"; about {duration(left)} left" if left else ""
    return f"{folder.name}: {', '.join(parts)}{ending}"
