"""Pretraining that several studies share is done once: a finished run of another study is used again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lmtransfer.config.overrides import key_of
from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.ledger import read_ledger
from lmtransfer.study.plan import PRETRAIN, Plan, StudyJob, stage_and_recipe

#: Overrides that say where a run is, and not what it is.
_PLACES = ("name", "output_root", "resume", "cache_dir")


def share_pretraining(plan: Plan) -> Plan:
    """The plan with pretraining jobs replaced by equal, finished runs of other studies under the same output root.

    Two runs are equal if their commands have the same overrides, apart from name and place. A run that the study has
    begun itself stays its own.
    """
    others = {words: run for run, words in _finished(plan)}
    moved: dict[Path, Path] = {}
    for job in plan.jobs:
        found = others.get(_content(job.overrides)) if job.stage == PRETRAIN and not job.run.exists() else None
        if found is not None:
            moved[job.run] = found
    return replace(plan, jobs=tuple(_moved(job, moved) for job in plan.jobs)) if moved else plan


def _finished(plan: Plan) -> Iterator[tuple[Path, frozenset[str]]]:
    """The finished pretraining runs of other studies, the last study by name first."""
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


def _moved(job: StudyJob, moved: dict[Path, Path]) -> StudyJob:
    """A pretraining job at its new place, or a transfer that begins from there."""
    if job.run in moved:
        return replace(job, result=moved[job.run] / "result.json", shared=True)
    starts = {f"init={old}": f"init={new}" for old, new in moved.items()}
    return replace(job, overrides=tuple(starts.get(word, word) for word in job.overrides))
