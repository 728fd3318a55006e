"""Several tasks in one word: ``task=glue`` is a sweep over the tasks that ``conf/task/glue.yaml`` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmtransfer.config import yaml_files

_TARGET = "lmtransfer.tasks.group.TaskGroup"


def expanded(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The overrides with the tasks of a group in the group's place.

    Args:
        overrides: ``key=value`` words.
        folders: the shipped configurations, then the user's.
    """
    return [_expanded(override, folders) for override in overrides]


def _expanded(override: str, folders: Sequence[Path]) -> str:
    key, _, value = override.partition("=")
    if key != "task":
        return override
    for folder in reversed(folders):
        path = folder / "task" / f"{value}.yaml"
        if path.is_file():
            node = yaml_files.load(path)
            if node.get("_target_") == _TARGET:
                return f"task={','.join(node.tasks)}"
            break
    return override
