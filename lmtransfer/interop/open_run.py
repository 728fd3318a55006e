"""Opens the run at the user's path; if the path names a published model, the model is first imported into the cache."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from lmtransfer.config.revisions import split_revision
from lmtransfer.errors import RunDirectoryError
from lmtransfer.interop.hub import repository_of
from lmtransfer.interop.published_folder import COMMIT, PREFIX, find_published, find_run
from lmtransfer.runs.result import RunResult, few_steps_warning
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved_run import SavedRun, folders_with_checkpoints, read_saved, seed_folders
from lmtransfer.training import process_group


def run_folder(path: str | Path, *, key: str) -> RunDirectory:
    """Return the run directory at the user's path, or in the cache for ``hf:<folder or name on the hub>``."""
    if str(path).startswith(PREFIX):
        # Imported here, because most runs do not start from a published model and need not load this code.
        from lmtransfer.interop.importing import import_into_cache, import_summary

        published = find_published(str(path), key=key)
        if published.is_run:
            return RunDirectory.open(published.path)
        folder, imported = import_into_cache(published)
        if imported is not None and process_group.is_main():
            for line in [*import_summary(imported), f"saved in the cache: {folder}"]:
                print(line, file=sys.stderr)
        return RunDirectory.open(folder)
    try:
        return RunDirectory.open(find_run(str(path), key=key))
    except RunDirectoryError as error:
        raise RunDirectoryError(f"{key}: {error}") from None


def open_saved(path: str | Path, *, key: str, trust: bool = False) -> SavedRun:
    """Open the run at the user's path.

    Args:
        path: the run directory; the suffix ``@1M`` selects a revision, and the prefix ``hf:`` marks a published model,
            which is imported.
    """
    _, revision = split_revision(str(path))
    _warn_of_few_steps(path, key)
    return read_saved(run_folder(path, key=key), reference=path, key=key, trust=trust, revision=revision)


@cache  # so that commands that open a run more than once print the warning once
def _warn_of_few_steps(path: str | Path, key: str) -> None:
    if key != "init" or str(path).startswith(PREFIX) or not process_group.is_main():
        return
    file = run_folder(path, key=key).path / "result.json"
    if not file.is_file():
        return
    try:
        warning = few_steps_warning(RunResult.read(file))
    except RunDirectoryError:  # a damaged result is reported where it is needed
        return
    if warning:
        print(f"warning: {key}={path}: {warning}", file=sys.stderr)


def origin_of(saved: SavedRun) -> str | None:
    """Return the origin of a run as ``owner/name@<commit>``; None if the run is not from the hub."""
    source, commit = saved.config.get("source"), (saved.directory.read_versions().get("data") or {}).get(COMMIT)
    if isinstance(source, str) and commit:
        return f"{source.removeprefix(PREFIX).partition('@')[0]}@{commit}"
    return repository_of(saved.path)


def is_pretrained(path: str | Path) -> bool:
    """Whether the run was pretrained on unlabeled text and has the pretraining heads."""
    config = run_folder(path, key="run").read_config()
    return "objective" in config and "task" not in config


def task_run_folders(path: str | Path) -> list[Path]:
    """Return the folders with checkpoints of a probe or finetuning run: the run itself, or its seeds in order."""
    directory = run_folder(path, key="run")
    config = directory.read_config()
    _, revision = split_revision(str(path))
    if revision is not None:
        directory.revision(revision)  # raises, because task runs keep no revisions
    if "transfer" not in config or "task" not in config:
        raise RunDirectoryError(
            f"run={path} was not trained on a task; give a probe or finetuning run, such as the result of `lmtransfer "
            f"finetune init={path}`"
        )
    folders = folders_with_checkpoints(directory.path)
    if not folders:
        directory.check_kept()
        RunDirectory((seed_folders(directory.path) or [directory.path])[0]).check_not_divided()
        raise RunDirectoryError(f"run={path} has no checkpoint yet; let it finish, or continue it with resume=true")
    return folders
