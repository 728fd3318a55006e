"""The words of a command line in Hydra's form, and the folders with configs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lmtransfer.config import overrides, paths, yaml_files
from lmtransfer.config.primary import drop_null_groups
from lmtransfer.errors import ConfigError

#: For commands that accept words without "=": the key that these words set.
_BARE_WORDS = {"compare": "runs", "list": "what", "report": "runs"}


def overrides_and_folders(command: str, line: overrides.CommandLine) -> tuple[list[str], list[Path]]:
    """The overrides of a command line in Hydra's form, and the folders with configs.

    Args:
        command: name of the command.
        line: the command line.

    Raises:
        ConfigError: a word is not an override or sets something of Hydra that is refused, two words contradict each
            other, or the folder of configs is invalid.
    """
    folders = [paths.conf_dir()]
    if line.config_dir is not None:
        _check_config_dir(Path(line.config_dir))
        folders.append(Path(line.config_dir))
    given = [*_bare_words(command, line.bare), *line.overrides]
    if line.config_dir is not None:
        yaml_files.check_yaml_files(Path(line.config_dir), given, line.config_name or command)
    given = drop_null_groups(given, primary=line.config_name or command, folders=folders)
    overrides.check_overrides(given, folders)
    return given, folders


def _bare_words(command: str, bare: Sequence[str]) -> list[str]:
    if not bare:
        return []
    if command not in _BARE_WORDS:
        raise ConfigError(f"'{bare[0]}' is not key=value; lmtransfer {command} --help shows the keys")
    quoted = [overrides.quote(word) for word in bare]
    return [f"{_BARE_WORDS[command]}={quoted[0] if len(quoted) == 1 else '[' + ','.join(quoted) + ']'}"]


def _check_config_dir(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--config-dir: there is no folder {folder}")
    for path in paths.shadowed(folder):
        print(
            f"lmtransfer: warning: {folder / path} is ignored, because lmtransfer has its own {path}; rename yours",
            file=sys.stderr,
        )
