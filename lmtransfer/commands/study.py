"""Pretrain several models or objectives, transfer each, and compare them in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lmtransfer.config import paths
from lmtransfer.config.budget import effective_train
from lmtransfer.config.check import check
from lmtransfer.config.composing import composed
from lmtransfer.errors import ConfigError, Interrupted, LmtransferError, RunDirectoryError
from lmtransfer.pretraining.assembly import check_pretraining
from lmtransfer.reporting.render.terminal import report_console
from lmtransfer.reporting.units import duration
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.plan import PRETRAIN, Job, Plan, make_plan
from lmtransfer.study.process import last_words, run_apart
from lmtransfer.study.table import markdown, read_rows, terminal_rows, write_table
from lmtransfer.study.transfers_table import MANY, transfers_markdown, transfers_table
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.durable import clear_abandoned, made, write_text
from lmtransfer.system.printable import short_path
from lmtransfer.transfer.experiment.settling import check_transfer
from lmtransfer.untrusted.documents import read_json
from lmtransfer.untrusted.schema import Entries, Items, Text

#: What ``study.json`` holds: the words that each run is made with.
_LEDGER = Entries(Items(Text()))


def run(cfg: DictConfig) -> Path:
    """Do every run that is not there yet, one after the other, and compare them.

    Returns:
        The study's folder.

    Raises:
        ConfigError: every problem of the study and of the commands in it, before any of them starts.
        Interrupted: SIGTERM or Ctrl-C; the run at hand is saved.
        LmtransferError: runs failed; the others are done, and the table is written.
    """
    check(cfg, primary="study")
    if ranks.world_size() > 1:
        raise ConfigError("a study starts its runs itself: call it without torchrun")
    plan, config_dir = make_plan(cfg), _config_dir()
    console = report_console()
    with console.status(f"checking {len(plan.jobs)} commands"):
        _check_jobs(plan, config_dir)
    _note_words(plan)
    failed = _do(plan, config_dir, console)
    rows = read_rows(plan)
    if rows:
        table, many = write_table(rows, plan), len(plan.transfers) > MANY
        write_text(table.with_name(f"{plan.name}.md"), (transfers_markdown if many else markdown)(rows, plan))
        console.print((transfers_table if many else terminal_rows)(rows, plan))
        console.print(f"kept as {table}.md, .csv and .json", markup=False, soft_wrap=True)
        console.print(f"next: lmtransfer report {short_path(plan.folder)}", markup=False, soft_wrap=True)
    if failed:
        lines = [f"  {job.key}: {reason}" for job, reason in failed]
        raise LmtransferError("\n".join([f"{len(failed)} of {len(plan.jobs)} runs failed:", *lines]))
    return plan.folder


def _config_dir() -> str | None:
    """The user's own config folder, which every command of the study is to search too."""
    if not HydraConfig.initialized():
        return None
    found = paths.searched(HydraConfig.get().runtime.config_sources)
    return next((str(folder) for folder in found if folder.resolve() != paths.conf_dir()), None)


def _check_jobs(plan: Plan, config_dir: str | None) -> None:
    """Compose and check each command, those that differ in their run only once."""
    problems: dict[str, str] = {}
    checked: set[tuple[str, tuple[str, ...]]] = set()
    for job in plan.jobs:
        words = tuple(word for word in job.words if word.partition("=")[0] not in ("name", "init"))
        if (job.command, words) in checked:
            continue
        checked.add((job.command, words))
        try:
            with composed(job.command, job.words, config_dir=config_dir) as cfg:
                if job.command == PRETRAIN:
                    nodes = {"optimizer": {"learner", "params"}, "schedule": set[str](), "tracker": {"folder"}}
                    check_pretraining(cfg, primary=PRETRAIN, more_nodes=nodes)
                else:
                    check_transfer(cfg, job.command)
                effective_train(cfg, primary=job.command)
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, job.key)
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem, where in problems.items()])


def _note_words(plan: Plan) -> None:
    """Keep what each run is made with, and refuse to mix runs that were made otherwise.

    Raises:
        ConfigError: a run that was begun with other words.
        RunDirectoryError: what was kept cannot be read.
    """
    path = plan.folder / "study.json"
    noted: dict[str, Any] = read_json(path, _LEDGER, error=RunDirectoryError) if path.exists() else {}
    problems = []
    for job in plan.jobs:
        before = noted.get(job.key)
        if before is not None and before != list(job.words) and job.run.is_dir():
            now, then = (" ".join(sorted(set(a) - set(b))) or "without that" for a, b in
                         ((job.words, before), (before, job.words)))  # fmt: skip
            problems.append(
                f"{job.key}: {short_path(job.run)} was made with {then}, and now it is {now}: use another name=, or "
                "delete that folder"
            )
        noted[job.key] = list(job.words)
    if problems:
        raise ConfigError(problems)
    with made(plan.folder):
        clear_abandoned(plan.folder)
        write_text(path, json.dumps(noted, indent=1) + "\n")


def _do(plan: Plan, config_dir: str | None, console: Console) -> list[tuple[Job, str]]:
    """Do the runs; those that failed, with the reason."""
    failed: list[tuple[Job, str]] = []
    logs = plan.folder / "logs"
    options = () if config_dir is None else ("-cd", config_dir)
    for number, job in enumerate(plan.jobs, start=1):
        heading = f"[{number}/{len(plan.jobs)}] {job.key}"
        if RunDirectory(job.run).is_finished:
            console.print(f"{heading}: finished", markup=False)
            continue
        if any(other.recipe == job.recipe and other.stage == PRETRAIN for other, _ in failed):
            failed.append((job, "there is nothing to begin from"))
            continue
        log = logs / f"{job.stage}-{job.recipe}.log"
        code = run_apart([job.command, *job.words, *options], log, console, heading=heading)
        if code == Interrupted.exit_code:
            raise Interrupted("the study was interrupted; the same command goes on with it")
        if code or not RunDirectory(job.run).is_finished:
            failed.append((job, f"{last_words(log)} ({short_path(log)})"))
            console.print(f"{heading}: failed: {failed[-1][1]}", markup=False, soft_wrap=True)
        else:
            taken = duration(RunDirectory(job.run).read_result().seconds or 0.0)
            console.print(f"{heading}: {taken}", markup=False, soft_wrap=True)
    return failed
