"""Pretrain several models or objectives, transfer each, and compare them in one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config import paths
from lmtransfer.config.check import check
from lmtransfer.config.config_files import folders_in_force
from lmtransfer.errors import ConfigError, LmtransferError, RunDirectoryError
from lmtransfer.reporting.render.terminal import report_console
from lmtransfer.reporting.sections import write_sections
from lmtransfer.runs import lock
from lmtransfer.study.ledger import note_overrides
from lmtransfer.study.plan import make_plan
from lmtransfer.study.running import check_jobs, do_jobs
from lmtransfer.study.sections import make_sections
from lmtransfer.study.shared import share_pretraining
from lmtransfer.study.table import read_rows, terminal_rows, write_table
from lmtransfer.system import ranks
from lmtransfer.system.printable import short_path


def run(cfg: DictConfig) -> Path:
    """Start every run that does not exist yet, one after the other, and compare all of them.

    Returns:
        The folder of the study.

    Raises:
        ConfigError: lists every problem of the study and of its commands, before any of them starts.
        Interrupted: SIGTERM or Ctrl-C; the current run is saved.
        LmtransferError: some runs failed; the others are finished, and the table is written.
    """
    check(cfg, primary="study")
    if ranks.world_size() > 1:
        raise ConfigError("a study starts its own runs: start it without torchrun")
    plan, config_dir = share_pretraining(make_plan(cfg)), _config_dir()
    console = report_console()
    with console.status(f"checking {len(plan.jobs)} commands"):
        check_jobs(plan, config_dir)
    note_overrides(plan)
    with _only_one(plan.folder):
        failed = do_jobs(plan, config_dir, console)
    rows = read_rows(plan)
    if rows:
        table = write_table(rows, plan)
        console.print(terminal_rows(rows, plan))
        console.print(f"kept as {table}.md, .csv and .json", markup=False, soft_wrap=True)
        sections = make_sections(rows, plan)
        write_sections(sections, plan.folder)
        for section in sections:
            console.print(f"{section.title} {section.sentence}", markup=False, soft_wrap=True)
            console.print(f"figure: {short_path(section.figure.png)}", markup=False, soft_wrap=True)
        console.print(f"next: lmtransfer report {short_path(plan.folder)}", markup=False, soft_wrap=True)
    if failed:
        lines = [f"  {job.key}: {reason}" for job, reason in failed]
        raise LmtransferError("\n".join([f"{len(failed)} of {len(plan.jobs)} runs failed:", *lines]))
    return plan.folder


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of a study while its runs are made.

    Raises:
        RunDirectoryError: another process runs the study.
    """
    try:
        lock.hold(folder)
    except lock.Busy as busy:
        by = "another process" if busy.pid is None else f"process {busy.pid}"
        raise RunDirectoryError(
            f"{short_path(folder)}: {by} is running this study; wait for it, or use another name= "
            f"(lmtransfer report {short_path(folder)} watch=true shows its progress)"
        ) from None
    try:
        yield
    finally:
        lock.release(folder)


def _config_dir() -> str | None:
    """The user's config folder, which every command of the study also searches."""
    return next((str(folder) for folder in folders_in_force() if folder.resolve() != paths.conf_dir()), None)
