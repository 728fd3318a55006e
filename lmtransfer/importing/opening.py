"""Open the run that the user named: a run directory, or a published model, which is imported into the cache."""

from __future__ import annotations

import sys
from pathlib import Path

from lmtransfer.errors import RunDirectoryError
from lmtransfer.importing.published_folder import PREFIX
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved import SavedRun, folders_with_checkpoints, read_saved, seed_folders
from lmtransfer.training import distributed


def run_folder(path: str | Path, *, key: str) -> RunDirectory:
    """Return the run directory that the user named; ``hf:<folder or name on the hub>`` gives a directory in the cache.

    Raises:
        RunDirectoryError: there is no such run directory.
        CheckpointError: there is no such published model, or it cannot be imported.
    """
    if str(path).startswith(PREFIX):
        # Imported here: most runs do not start from a published model and need not load the code that reads one.
        from lmtransfer.importing.importing import import_into_cache, imported_lines

        folder, imported = import_into_cache(str(path), key=key)
        if imported is not None and distributed.is_main():
            for line in [*imported_lines(imported), f"kept in the cache: {folder}"]:
                print(line, file=sys.stderr)
        return RunDirectory.open(folder)
    try:
        return RunDirectory.open(Path(path).expanduser())
    except RunDirectoryError as error:
        raise RunDirectoryError(f"{key}: {error}") from None


def open_saved(path: str | Path, *, key: str, trust: bool = False) -> SavedRun:
    """Open the run that the user named.

    Args:
        path: the directory as the user gave it; the prefix ``hf:`` marks a published model, which is imported.
        key: the configuration key that the user set, for messages.
        trust: whether the user trusts the run even if somebody else made it.

    Raises:
        RunDirectoryError: the directory is missing, or is not a run with a model.
        CheckpointError: its tokenizer is damaged, or a published model cannot be imported.
    """
    return read_saved(run_folder(path, key=key), given=path, key=key, trust=trust)


def is_pretrained(path: str | Path) -> bool:
    """Whether the run was trained on text without labels, and has the heads for it.

    Raises:
        RunDirectoryError: the path is not a run.
        CheckpointError: a published model cannot be imported.
    """
    config = run_folder(path, key="run").read_config()
    return "objective" in config and "task" not in config


def trained_folders(path: str | Path) -> list[Path]:
    """Return the run of a task that the user named, or its seeds in order.

    Raises:
        RunDirectoryError: the path holds no run of a task, or none with a checkpoint.
    """
    directory = run_folder(path, key="run")
    config = directory.read_config()
    if "transfer" not in config or "task" not in config:
        raise RunDirectoryError(
            f"run={path}: was not trained on a task; give a run of probe or finetune; make one by lmtransfer finetune "
            f"init={path}"
        )
    folders = folders_with_checkpoints(directory.path)
    if not folders:
        RunDirectory((seed_folders(directory.path) or [directory.path])[0]).check_not_divided()
        raise RunDirectoryError(f"run={path}: has no checkpoint yet; let it finish, or continue it with resume=true")
    return folders
