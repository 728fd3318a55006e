"""The ledger of a study, ``study.json``: the overrides and the duration of each of its runs.

The seconds are wall-clock time over all starts of the run. The result of a run has only its training seconds, whereas a
transfer also chooses rates, trains controls, and reads data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Required

from typing_extensions import TypedDict

from lmtransfer.config.overrides import key_of
from lmtransfer.config.types import NonNegative
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.plan import PRETRAIN, StudyJob, StudyPlan, stage_and_recipe
from lmtransfer.system.durable import clear_abandoned, ensure_folder, write_text
from lmtransfer.system.printable import short_path
from lmtransfer.system.safe_files import read_json

_NAME = "study.json"

#: Overrides that say where a run is but not what it is.
_PLACES = ("name", "output_root", "resume", "cache_dir")


class LedgerEntry(TypedDict, total=False):
    """A run in the ledger; without ``seconds`` if it has not ended yet."""

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
        RunDirectoryError: the saved overrides cannot be read.
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
                f"{job.key}: {short_path(job.run)} was started with {then}, but the study now has {now}: use another "
                f"name=, or delete that folder{also}"
            )
        elif job.stage == PRETRAIN and not job.run.is_dir() and (transfers := _started_from(plan, job)):
            folders = " and ".join(map(short_path, transfers))
            problems.append(
                f"{job.key}: {short_path(job.run)} is missing and would be pretrained again, but {folders} started "
                "from it: delete these folders too, or use another name="
            )
        ledger[job.key] = saved or {"overrides": []}
        ledger[job.key]["overrides"] = list(job.overrides)
    if problems:
        raise ConfigError(problems)
    with ensure_folder(plan.folder):
        clear_abandoned(plan.folder)
        _write(plan.folder, ledger)


def add_seconds(folder: Path, key: str, seconds: float, *, resumed: bool) -> float:
    """Add seconds to those of a run and return the sum.

    Args:
        seconds: duration of this start.
        resumed: whether the run was resumed, so that earlier seconds count.
    """
    ledger = read_ledger(folder)
    entry = ledger[key]
    entry["seconds"] = round(seconds + (entry.get("seconds", 0.0) if resumed else 0.0), 1)
    _write(folder, ledger)
    return entry["seconds"]


def _write(folder: Path, ledger: Ledger) -> None:
    write_text(folder / _NAME, json.dumps(ledger, indent=1) + "\n")


def _started_from(plan: StudyPlan, pretraining: StudyJob) -> list[Path]:
    """Return the transfer runs that began from the run of a pretraining job; none for other jobs."""
    if pretraining.stage != PRETRAIN:
        return []
    same = (job for job in plan.jobs if job.recipe == pretraining.recipe and job.stage != PRETRAIN and not job.shared)
    return [job.run for job in same if job.run.is_dir()]


def share_pretraining(plan: StudyPlan) -> StudyPlan:
    """Replace pretraining jobs with equal, finished runs of other studies in the same output root.

    Two runs are equal if their commands have the same overrides, apart from name and place. A run that the study itself
    has begun is kept.
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
    """Move a pretraining job to its new place, or let a transfer begin from there."""
    if job.run in moved:
        return replace(job, result=moved[job.run] / "result.json", shared=True)
    starts = {f"init={old}": f"init={new}" for old, new in moved.items()}
    return replace(job, overrides=tuple(starts.get(word, word) for word in job.overrides))
