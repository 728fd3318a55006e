"""A copy of a run of others below the user's own runs, to continue it there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.printable import short_path

_COMMANDS = ("pretrain", "import", "probe", "finetune")


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Names in a folder that are not copied: files of a repository that belong to no run, and links of trackers."""
    of_trackers = "trackers" in Path(folder).parts
    return {
        name
        for name in names
        if name == "README.md" or name.startswith(".") or (of_trackers and Path(folder, name).is_symlink())
    }


def copy_run(folder: Path, root: Path, *, name: str | None) -> RunDirectory:
    """Copy a run, completely or not at all, to where the command that made it finds it.

    Args:
        folder: the run.
        root: folder of the user's runs.
        name: name of the copy; None: the name in its configuration.

    Raises:
        RunDirectoryError: it is damaged, or a run of this name exists.
    """
    source = RunDirectory.open(folder)
    config = source.read_config()
    run = RunDirectory.create(root, _command_of(source, config), name or config.get("name") or folder.name)
    with staged_folder(run.path) as staged:
        shutil.copytree(source.path, staged, ignore=_left_out, dirs_exist_ok=True)
    return run


def _command_of(run: RunDirectory, config: Mapping[str, Any]) -> str:
    """The command that made a run: from its result, else from its configuration."""
    recorded = run.read_result().command if run.is_finished else None
    if recorded in _COMMANDS:
        return recorded
    if "task" not in config:
        return "pretrain"
    return "probe" if (config.get("transfer") or {}).get("freeze") == "frozen" else "finetune"


def copied_lines(run: RunDirectory) -> list[str]:
    """Return lines that say where the copy is and how to go on."""
    path = short_path(run.path)
    if not run.is_finished:
        name = run.path.name
        return [f"run: {run.path}", f"continue it: the command that began it, with name={name} resume=true"]
    is_of_task = "task" in run.read_config()
    next_command = f"lmtransfer predict run={path} text=..." if is_of_task else f"lmtransfer finetune init={path}"
    return [f"run: {run.path}", f"next: {next_command}"]
