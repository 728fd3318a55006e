"""The progress of a study: the ledger of its runs, pretraining runs that studies share, and the state of each run."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Required

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typing_extensions import TypedDict

from lmtransfer.config.settings import key_of
from lmtransfer.config.types import NonNegative
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.launch.jobs import last_lines, last_message, was_interrupted
from lmtransfer.reporting.runs.collect import COMMANDS
from lmtransfer.runs.create_or_resume import LOCK, writer
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.plan import PRETRAIN, StudyJob, StudyPlan, job_key, stage_and_recipe
from lmtransfer.system.console import Console
from lmtransfer.system.durable import clear_abandoned, ensure_folder, write_text
from lmtransfer.system.printable import duration, short_path
from lmtransfer.system.safe_files import read_json

_NAME = "study.json"

#: Overrides that determine where a run is stored, but not what it does.
_PLACES = ("name", "output_root", "resume", "cache_dir")

State = Literal["finished", "running", "failed", "interrupted", "waiting"]
_BUDGET = re.compile(r"train\.seconds=(\d+(?:\.\d*)?)")
_EVERY_SECONDS = 2.0
_MARKS = {"finished": "+", "running": ">", "failed": "x", "interrupted": "!", "waiting": "."}
_STYLES = {"running": "bold", "failed": "bold red", "waiting": "dim"}


class LedgerEntry(TypedDict, total=False):
    """A run in the ledger; ``seconds`` is missing until the run ends."""

    overrides: Required[list[str]]
    seconds: NonNegative


Ledger = dict[str, LedgerEntry]


def read_ledger(folder: Path) -> Ledger:
    """Read the runs of a study, by job key; empty if the study has not begun."""
    path = folder / _NAME
    return read_json(path, Ledger, error=RunDirectoryError) if path.exists() else {}


def note_overrides(plan: StudyPlan) -> None:
    """Save the overrides of each run, and reject runs that began with other overrides.

    Raises:
        ConfigError: a run began with other overrides, or from a pretraining run that no longer exists.
    """
    ledger = read_ledger(plan.folder)
    problems = []
    for job in plan.jobs:
        if job.shared:
            continue
        saved = ledger.get(job.key)
        before = None if saved is None else saved["overrides"]
        if before is not None and before != list(job.overrides) and job.run.is_dir():
            now, then = (" ".join(sorted(set(a) - set(b))) or "no such setting" for a, b in
                         ((job.overrides, before), (before, job.overrides)))  # fmt: skip
            also = "".join(f" and {short_path(run)}" for run in _started_from(plan, job))
            problems.append(
                f"{job.key}: {short_path(job.run)} was started with {then}, but the study now has {now}: choose "
                f"another name, or delete that folder{also}"
            )
        elif job.stage == PRETRAIN and not job.run.is_dir() and (transfers := _started_from(plan, job)):
            folders = " and ".join(map(short_path, transfers))
            problems.append(
                f"{job.key}: {short_path(job.run)} is missing and would be pretrained again, but {folders} started "
                "from it: delete these folders too, or choose another name"
            )
        ledger[job.key] = saved or {"overrides": []}
        ledger[job.key]["overrides"] = list(job.overrides)
    if problems:
        raise ConfigError(problems)
    with ensure_folder(plan.folder):
        clear_abandoned(plan.folder)
        _write(plan.folder, ledger)


def add_seconds(folder: Path, key: str, seconds: float, *, resumed: bool) -> float:
    """Add the seconds of one start of a run to the run's total, and return the total.

    Args:
        resumed: whether the run was resumed, so that the seconds of earlier starts count.
    """
    ledger = read_ledger(folder)
    entry = ledger[key]
    entry["seconds"] = round(seconds + (entry.get("seconds", 0.0) if resumed else 0.0), 1)
    _write(folder, ledger)
    return entry["seconds"]


def _write(folder: Path, ledger: Ledger) -> None:
    write_text(folder / _NAME, json.dumps(ledger, indent=1) + "\n")


def _started_from(plan: StudyPlan, pretraining: StudyJob) -> list[Path]:
    """Return the transfer runs that started from a pretraining job's run; empty for other jobs."""
    if pretraining.stage != PRETRAIN:
        return []
    same = (job for job in plan.jobs if job.recipe == pretraining.recipe and job.stage != PRETRAIN and not job.shared)
    return [job.run for job in same if job.run.is_dir()]


def share_pretraining(plan: StudyPlan) -> StudyPlan:
    """Replace pretraining jobs with identical, finished runs of other studies in the same output root.

    Two runs are identical if their commands have the same overrides, apart from the name and the place. A run that this
    study has begun is kept.
    """
    others = {words: run for run, words in _finished(plan)}
    moved: dict[Path, Path] = {}
    for job in plan.jobs:
        other_run = others.get(_content(job.overrides)) if job.stage == PRETRAIN and not job.run.exists() else None
        if other_run is not None:
            moved[job.run] = other_run
    return replace(plan, jobs=tuple(_move(job, moved) for job in plan.jobs)) if moved else plan


def _finished(plan: StudyPlan) -> Iterator[tuple[Path, frozenset[str]]]:
    """Yield the finished pretraining runs of other studies, in reverse order of study names."""
    for folder in sorted(plan.folder.parent.glob("*"), reverse=True):
        if folder == plan.folder or not (folder / "study.json").is_file():
            continue
        try:
            ledger = read_ledger(folder)
        except RunDirectoryError:
            continue
        for key, entry in ledger.items():
            stage, recipe = stage_and_recipe(key)
            run = folder / PRETRAIN / recipe
            if stage == PRETRAIN and RunDirectory(run).is_finished:
                yield run, _content(entry["overrides"])


def _content(overrides: list[str] | tuple[str, ...]) -> frozenset[str]:
    return frozenset(word for word in overrides if key_of(word) not in _PLACES)


def _move(job: StudyJob, moved: dict[Path, Path]) -> StudyJob:
    """Move a pretraining job to the run that replaces it, or let a transfer start from that run."""
    if job.run in moved:
        return replace(job, result=moved[job.run] / "result.json", shared=True)
    starts = {f"init={old}": f"init={new}" for old, new in moved.items()}
    return replace(job, overrides=tuple(starts.get(word, word) for word in job.overrides))


@dataclass(frozen=True, slots=True)
class JobProgress:
    """One run of a study.

    Attributes:
        seconds: wall-clock duration, so far or in total; None if the run has not begun.
        left: estimated seconds until the run ends; None if unknown.
        note: the last line of output while the run is running; the reason if the run failed.
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
    return [
        job
        if job.state in ("finished", "failed") or whole is None
        else replace(job, left=max(0.0, whole - (job.seconds or 0.0)))
        for job, whole in zip(jobs, expected, strict=True)
    ]


def seconds_left(jobs: Sequence[JobProgress]) -> float | None:
    """Estimate the seconds until the last run ends; None if a run's duration is unknown.

    The estimate assumes that as many transfers run at a time as now, and that pretraining runs run alone.
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
    run, before = _run_of(folder, stage, recipe, entry["overrides"]), entry.get("seconds")
    log = folder / "logs" / f"{stage}-{recipe}.log"
    if run is not None and RunDirectory(run).is_finished:
        try:
            result = RunDirectory(run).read_result()
            return JobProgress(recipe, stage, "finished", result.seconds if before is None else before)
        except RunDirectoryError as error:
            return JobProgress(recipe, stage, "failed", note=str(error))
    if run is not None and writer(run) is not None and log.is_file():
        seconds = (before or 0.0) + time.time() - _start_time(run)
        return JobProgress(recipe, stage, "running", seconds, note=last_message(log))
    failed = any(line.startswith("lmtransfer: ") for line in last_lines(log))
    if failed and not was_interrupted(log):
        return JobProgress(recipe, stage, "failed", note=last_message(log))
    return JobProgress(recipe, stage, "waiting" if run is None else "interrupted")


def _run_of(folder: Path, stage: str, recipe: str, overrides: Sequence[str]) -> Path | None:
    name = next((word.partition("=")[2] for word in overrides if word.startswith("name=")), recipe)
    commands = [stage] if stage in COMMANDS else [command for command in COMMANDS if command != PRETRAIN]
    return next((run for command in commands if (run := folder / command / name).is_dir()), None)


def _start_time(run: Path) -> float:
    try:
        return (run / LOCK).stat().st_mtime
    except OSError:
        return time.time()


def _budget(overrides: Sequence[str]) -> float | None:
    matches = [match for word in overrides if (match := _BUDGET.fullmatch(word))]
    return float(matches[-1][1]) if matches else None


def watch(folder: Path, console: Console) -> list[JobProgress]:
    """Show the progress until all runs have ended, or only once if the output is not a terminal."""
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
