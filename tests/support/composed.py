"""What is wrong with a command line."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.errors import ConfigError
from lmtransfer.launch.run_once import command_settings


def problems(command: str, words: Sequence[str]) -> list[str]:
    """What a command would say about its words before it works, but for what depends on the data."""
    try:
        command_settings(command, words)
    except ConfigError as error:
        return error.problems
    return []
