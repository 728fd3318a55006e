"""Running a study: check all runs, run them one after the other, never mix them with runs that have other settings."""

from __future__ import annotations

from lmtransfer.config.budget import effective_train
from lmtransfer.config.composing import composed
from lmtransfer.errors import ConfigError, Interrupted
from lmtransfer.pretraining.checks import check_pretraining
from lmtransfer.reporting.units import duration
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.plan import PRETRAIN, Job, Plan
from lmtransfer.study.process import last_words, run_apart
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.transfer.experiment.checks import check_transfer


def check_jobs(plan: Plan, config_dir: str | None) -> None:
    """Compose and check each command; runs that differ only in ``name`` and ``init`` are checked once."""
    problems: dict[str, str] = {}
    checked: set[tuple[str, tuple[str, ...]]] = set()
    for job in plan.jobs:
        overrides = tuple(word for word in job.overrides if word.partition("=")[0] not in ("name", "init"))
        if (job.command, overrides) in checked:
            continue
        checked.add((job.command, overrides))
        try:
            with composed(job.command, job.overrides, config_dir=config_dir) as cfg:
                if job.command == PRETRAIN:
                    check_pretraining(cfg, primary=PRETRAIN)
                else:
                    check_transfer(cfg, job.command)
                effective_train(cfg, primary=job.command)
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, job.key)
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem, where in problems.items()])


def do_jobs(plan: Plan, config_dir: str | None, console: Console) -> list[tuple[Job, str]]:
    """Run all jobs; return the failed ones with the reason."""
    failed: list[tuple[Job, str]] = []
    logs = plan.folder / "logs"
    options = () if config_dir is None else ("-cd", config_dir)
    for number, job in enumerate(plan.jobs, start=1):
        heading = f"[{number}/{len(plan.jobs)}] {job.key}"
        if RunDirectory(job.run).is_finished:
            where = f" in {short_path(job.run)}" if job.shared else ""
            console.print(f"{heading}: finished{where}", markup=False, soft_wrap=True)
            continue
        if any(other.recipe == job.recipe and other.stage == PRETRAIN for other, _ in failed):
            failed.append((job, "its pretraining failed"))
            continue
        log = logs / f"{job.stage}-{job.recipe}.log"
        code = run_apart([job.command, *job.overrides, *options], log, console, heading=heading)
        if code == Interrupted.exit_code:
            raise Interrupted("the study was interrupted; run the same command again to continue it")
        if code or not RunDirectory(job.run).is_finished:
            failed.append((job, f"{last_words(log)} ({short_path(log)})"))
            console.print(f"{heading}: failed: {failed[-1][1]}", markup=False, soft_wrap=True)
        else:
            taken = duration(RunDirectory(job.run).read_result().seconds or 0.0)
            console.print(f"{heading}: {taken}", markup=False, soft_wrap=True)
    return failed
