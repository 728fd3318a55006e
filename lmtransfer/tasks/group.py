"""The name of several tasks."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.errors import ConfigError


class TaskGroup:
    """Stands for several tasks on the command line, where ``task=<group>`` is a sweep over them; it is no task itself.

    Args:
        name: of the group.
        tasks: names of the tasks, files of ``conf/task``.
        data_root: as every task has it; not used.

    Raises:
        ConfigError: always, since a command can do one task at a time.
    """

    def __init__(self, *, name: str, tasks: Sequence[str], data_root: str | None = None) -> None:
        raise ConfigError(
            f"task={name}: stands for {', '.join(tasks)}; give it on the command line of probe, finetune or evaluate, "
            "where it is a sweep over them, or choose one of them"
        )
