"""Running a study: check all runs, then run those that are not finished."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from lmtransfer.config.composing import all_keys, composed
from lmtransfer.config.nearest import nearest
from lmtransfer.config.overrides import key_of, named_keys
from lmtransfer.errors import ConfigError, Interrupted
from lmtransfer.launch.run_once import module_of
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.figure_specs import PLACES
from lmtransfer.study.plan import PRETRAIN, Job, Plan
from lmtransfer.study.process import Command, last_words
from lmtransfer.study.side_by_side import run_commands
from lmtransfer.study.times import add_time
from lmtransfer.system.console import Console
from lmtransfer.system.cores import usable_cores
from lmtransfer.system.printable import short_path
from lmtransfer.system.units import duration


def check_jobs(plan: Plan, config_dir: str | None) -> None:
    """Compose and check each command; runs that differ only in ``name`` and ``init`` are checked once."""
    problems: dict[str, str] = {}
    checked: set[tuple[str, tuple[str, ...]]] = set()
    keys: set[str] = set(PLACES)
    for job in plan.jobs:
        overrides = tuple(word for word in job.overrides if key_of(word) not in ("name", "init"))
        if (job.command, overrides) in checked:
            continue
        checked.add((job.command, overrides))
        try:
            with composed(job.command, job.overrides, config_dir=config_dir) as cfg:
                module_of(job.command).check_settings(cfg)
                keys.update(all_keys(cfg))
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, job.key)
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem, where in problems.items()])
    lost = [spec for spec in plan.figures if spec.x not in keys]
    if lost:
        known = {spec.x: nearest(spec.x, [*PLACES, *sorted(keys - set(PLACES))]) for spec in lost}
        raise ConfigError(
            [
                f"figures.{spec.name}.x={spec.x}: no run of the study has this key; "
                + (f"did you mean '{known[spec.x]}'? " if known[spec.x] else "")
                + f"use a key of the runs, or one of {', '.join(PLACES)}"
                for spec in lost
            ]
        )


def do_jobs(plan: Plan, config_dir: str | None, console: Console) -> list[tuple[Job, str]]:
    """Run all jobs; return the failed ones with the reason.

    Pretraining runs one after the other, also where several transfers run at the same time: its budget may be a time,
    and then two at once would train less.

    Raises:
        Interrupted: SIGTERM or Ctrl-C; the running jobs are saved.
    """
    jobs = _Jobs(plan, () if config_dir is None else ("-cd", config_dir), console)
    for alone, members in groupby(plan.jobs, key=lambda job: plan.at_once == 1 or job.stage == PRETRAIN):
        jobs.run(list(members), at_once=1 if alone else plan.at_once)
    return jobs.failed


@dataclass(frozen=True, slots=True)
class _Started:
    """A job whose command runs.

    Attributes:
        job: the job.
        at: the start, on the monotonic clock.
        resume: whether an earlier command had begun its run.
    """

    job: Job
    at: float
    resume: bool


class _Jobs:
    """The jobs of a study while they run.

    Args:
        plan: the study.
        options: further words of every command.
        console: prints a line for each job.

    Attributes:
        failed: the failed jobs, each with the reason.
    """

    def __init__(self, plan: Plan, options: Sequence[str], console: Console) -> None:
        self.plan = plan
        self.options = options
        self.console = console
        self.failed: list[tuple[Job, str]] = []
        self._started: dict[Command, _Started] = {}

    def run(self, jobs: Sequence[Job], *, at_once: int = 1) -> None:
        """Run jobs; those whose pretraining failed fail, too."""
        was_interrupted = False
        for command, code in run_commands(self._commands(jobs, at_once), self.console, at_once=at_once):
            started = self._started[command]
            seconds = time.monotonic() - started.at
            seconds = add_time(self.plan.folder, started.job.key, seconds, resume=started.resume)
            if code == Interrupted.exit_code:
                was_interrupted = True
            else:
                self._record(started.job, command, code, seconds)
        if was_interrupted:
            raise Interrupted("the study was interrupted; run the same command again to continue it")

    def _commands(self, jobs: Sequence[Job], at_once: int) -> Iterator[Command]:
        """The commands of the jobs that are not finished, each made when it can start."""
        for job in jobs:
            if RunDirectory(job.run).is_finished:
                where = f" in {short_path(job.run)}" if job.shared else ""
                self._say(job, f"finished{where}")
            elif any(other.recipe == job.recipe and other.stage == PRETRAIN for other, _ in self.failed):
                self.failed.append((job, "its pretraining failed"))
            else:
                words = (job.command, *job.overrides, *self._without_effect(job, at_once), *self.options)
                log = self.plan.folder / "logs" / f"{job.stage}-{job.recipe}.log"
                command = Command(words, log, self._heading(job))
                self._started[command] = _Started(job, time.monotonic(), resume=job.run.is_dir())
                yield command

    def _without_effect(self, job: Job, at_once: int) -> list[str]:
        """Settings that change no result, so that the ledger does not hold them; those of the job itself come first."""
        settings = {}
        if at_once > 1:
            settings["hardware.threads"] = str(max(1, usable_cores() // at_once))
        if job.stage != PRETRAIN and not self.plan.keep_weights:
            settings["keep_weights"] = "false"
        own = named_keys(job.overrides)
        return [f"{key}={value}" for key, value in settings.items() if key not in own]

    def _record(self, job: Job, command: Command, code: int, seconds: float) -> None:
        directory = RunDirectory(job.run)
        if code or not directory.is_finished:
            self.failed.append((job, f"{last_words(command.log)} ({short_path(command.log)})"))
            self._say(job, f"failed: {self.failed[-1][1]}")
        else:
            self._say(job, duration(seconds))

    def _heading(self, job: Job) -> str:
        return f"[{self.plan.jobs.index(job) + 1}/{len(self.plan.jobs)}] {job.key}"

    def _say(self, job: Job, what: str) -> None:
        self.console.print(f"{self._heading(job)}: {what}", markup=False, soft_wrap=True)
