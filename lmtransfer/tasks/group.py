"""A name for a group of tasks."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.config.types import Folder, Name
from lmtransfer.errors import ConfigError


class TaskGroup:
    """A name for several tasks on the command line: ``task=<group>`` runs a sweep over them. It is not a task itself.

    Args:
        name: name of the group.
        tasks: names of the tasks, files of ``conf/task``.
        data_root: not used; present because every task has it.

    Raises:
        ConfigError: always, because a command runs one task at a time.
    """

    def __init__(self, *, name: Name, tasks: Sequence[str], data_root: Folder | None = None) -> None:
        raise ConfigError(
            f"task={name}: is a group of the tasks {', '.join(tasks)}; use it on the command line of probe, finetune "
            "or evaluate, which then run a sweep over these tasks, or choose one of them"
        )
