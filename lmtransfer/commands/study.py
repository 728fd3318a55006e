"""Pretrain several models or objectives, transfer each, and compare them in one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmtransfer.config.nearest import nearest_name
from lmtransfer.config.paths import own_folder
from lmtransfer.config.settings import StudySettings, key_of
from lmtransfer.errors import ConfigError, LmtransferError, RunDirectoryError
from lmtransfer.launch.jobs import Place, run_jobs
from lmtransfer.launch.run_once import checked_settings
from lmtransfer.reporting.page.report import write_sections
from lmtransfer.reporting.table import print_table, report_console
from lmtransfer.reporting.what_now import command_line, print_findings, print_next
from lmtransfer.runs.create_or_resume import Busy, hold, release
from lmtransfer.study.plan import PLACES, StudyPlan, make_plan
from lmtransfer.study.progress import add_seconds, note_overrides, share_pretraining
from lmtransfer.study.sections import make_sections, read_rows, study_findings, study_table, write_table
from lmtransfer.system import ranks
from lmtransfer.system.printable import short_path
from lmtransfer.system.validation import join


def run(settings: StudySettings) -> Path:
    """Run everything that is not finished yet, and compare all runs."""
    if ranks.world_size() > 1:
        raise ConfigError("a study starts its own runs: start it without torchrun")
    config_dir = own_folder(settings.config_folders)
    options = () if config_dir is None else ("-cd", config_dir)
    place = Place.of(settings.jobs, settings.cluster, options=options, cache_dir=settings.cache_dir)
    plan = share_pretraining(make_plan(settings))
    console = report_console()
    with console.status(f"checking {len(plan.jobs)} commands"):
        _check_jobs(plan, config_dir)
    note_overrides(plan)
    with _only_one(plan.folder):
        failed = run_jobs(
            plan.jobs,
            place,
            console,
            record=lambda job, seconds, resumed: add_seconds(plan.folder, job.key, seconds, resumed=resumed),
            where={job.key: f" in {short_path(job.run)}" for job in plan.jobs if job.shared},
        )
    rows = read_rows(plan)
    if rows:
        table = write_table(rows, plan)
        print_table(study_table(rows, plan), console)
        console.print(f"written to {table}.md, .csv and .json", markup=False, soft_wrap=True)
        sections = make_sections(rows, plan)
        write_sections(sections, plan.folder)
        for section in sections:
            console.print(f"{section.title} {section.sentence}", markup=False, soft_wrap=True)
            console.print(f"figure: {short_path(section.svg.with_suffix('.png'))}", markup=False, soft_wrap=True)
        if not plan.demonstration:
            print_findings(study_findings(rows), console)
        print_next([command_line("report", short_path(plan.folder))], console)
    if failed:
        lines = [f"  {key}: {reason}" for key, reason in failed.items()]
        raise LmtransferError("\n".join([f"{len(failed)} of {len(plan.jobs)} runs failed:", *lines]))
    return plan.folder


def _check_jobs(plan: StudyPlan, config_dir: str | None) -> None:
    """Compose and check each command; commands that differ only in ``name`` and ``init`` are checked once."""
    problems: dict[str, str] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    keys: set[str] = set(PLACES)
    for job in plan.jobs:
        overrides = tuple(word for word in job.overrides if key_of(word) not in ("name", "init"))
        if (job.command, overrides) in seen:
            continue
        seen.add((job.command, overrides))
        try:
            keys.update(_keys(checked_settings(job.command, job.overrides, config_dir=config_dir).plain()))
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, job.key)
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem, where in problems.items()])
    unmatched = [spec for spec in plan.figures if spec.x not in keys]
    if unmatched:
        names = {spec.x: nearest_name(spec.x, [*PLACES, *sorted(keys - set(PLACES))]) for spec in unmatched}
        raise ConfigError(
            [
                f"figures.{spec.name}.x={spec.x}: no run of the study has this key; "
                + (f"did you mean '{names[spec.x]}'? " if names[spec.x] else "")
                + f"use a key of the runs' settings, or one of {', '.join(PLACES)}"
                for spec in unmatched
            ]
        )


def _keys(values: Mapping[str, Any], key: str = "") -> Iterator[str]:
    """Yield the full keys of all groups and values."""
    for name, value in values.items():
        yield (where := join(key, name))
        if isinstance(value, Mapping):
            yield from _keys(value, where)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    try:
        hold(folder)
    except Busy as busy:
        by = "another process" if busy.pid is None else f"process {busy.pid}"
        raise RunDirectoryError(
            f"{short_path(folder)}: {by} is running this study; wait for it, or choose another name with name=... "
            f"(lmtransfer report {short_path(folder)} watch=true shows its progress)"
        ) from None
    try:
        yield
    finally:
        release(folder)
