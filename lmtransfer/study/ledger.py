"""The ledger of a study, ``study.json``: the overrides of each of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.study.plan import PRETRAIN, Job, Plan
from lmtransfer.system.durable import clear_abandoned, made, write_text
from lmtransfer.system.printable import short_path
from lmtransfer.system.safe_files import read_json

_NAME = "study.json"


def read_ledger(folder: Path) -> dict[str, Any]:
    """The overrides of each run of a study, by the key of its job; empty if the study has not begun.

    Raises:
        RunDirectoryError: the file cannot be read.
    """
    path = folder / _NAME
    return read_json(path, dict[str, list[str]], error=RunDirectoryError) if path.exists() else {}


def note_overrides(plan: Plan) -> None:
    """Save the overrides of each run, and refuse to continue runs that were made otherwise.

    Raises:
        ConfigError: a run began with other overrides, or from a pretraining run that is gone.
        RunDirectoryError: the saved overrides cannot be read.
    """
    saved = read_ledger(plan.folder)
    problems = []
    for job in plan.jobs:
        if job.shared:
            continue
        before = saved.get(job.key)
        if before is not None and before != list(job.overrides) and job.run.is_dir():
            now, then = (" ".join(sorted(set(a) - set(b))) or "no such setting" for a, b in
                         ((job.overrides, before), (before, job.overrides)))  # fmt: skip
            also = "".join(f" and {short_path(run)}" for run in _from_it(plan, job))
            problems.append(
                f"{job.key}: {short_path(job.run)} was made with {then}, but the study now has {now}: use another "
                f"name=, or delete that folder{also}"
            )
        elif job.stage == PRETRAIN and not job.run.is_dir() and (made_from_it := _from_it(plan, job)):
            folders = " and ".join(map(short_path, made_from_it))
            problems.append(
                f"{job.key}: {short_path(job.run)} is gone, and would be made anew, but {folders} began from it: "
                "delete these folders too, or use another name="
            )
        saved[job.key] = list(job.overrides)
    if problems:
        raise ConfigError(problems)
    with made(plan.folder):
        clear_abandoned(plan.folder)
        write_text(plan.folder / _NAME, json.dumps(saved, indent=1) + "\n")


def _from_it(plan: Plan, pretraining: Job) -> list[Path]:
    """The runs of transfers that began from the run of a pretraining job; none for another job."""
    if pretraining.stage != PRETRAIN:
        return []
    same = (job for job in plan.jobs if job.recipe == pretraining.recipe and job.stage != PRETRAIN and not job.shared)
    return [job.run for job in same if job.run.is_dir()]
