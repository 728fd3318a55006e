"""Runs a command from the command line or from Python.

Hydra composes the configuration. It writes no files, does not change the directory and does not print errors.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmtransfer.config import config_files, overrides, paths
from lmtransfer.config.composing import running_config
from lmtransfer.config.config_files import drop_null_groups
from lmtransfer.config.short_forms import expand_task_groups
from lmtransfer.config.sweep_names import in_sweep
from lmtransfer.errors import ConfigError
from lmtransfer.launch.run_once import run_once
from lmtransfer.launch.run_sweep import run_by_hydra

#: Hydra supports one running command per process, so calls from several threads wait for each other.
_one_call = threading.RLock()

#: The key that words without "=" set, for commands that accept such words.
_BARE_WORDS = {"compare": "runs", "list": "what", "report": "runs"}


def run_command(command: str, words: Sequence[str]) -> int:
    """Run ``lmtransfer <command> <words>``.

    Returns:
        0, or 1 if a point of a sweep failed.
    """
    line = overrides.read(words)
    settings, folders = overrides_and_folders(command, line)
    words = expand_task_groups(settings, folders)
    if words != settings and not line.is_sweep:
        line.options.append("--multirun")
        line.is_sweep = True
    settings = words
    is_plain = _is_plain(line, settings)
    if is_plain:  # composes once; Hydra's own command line would compose twice
        with running_config(command, settings, config_dir=line.config_dir) as cfg:
            if not in_sweep():  # a config may ask for a sweep
                run_once(command, cfg)
                return 0
    is_sweep = is_plain or line.is_sweep or any(word.startswith("hydra.mode=") for word in settings)
    return run_by_hydra(command, line, settings, is_sweep=is_sweep)


def call_command(command: str, line: overrides.CommandLine, **arguments: Any) -> Any:
    """Run a command once for a caller in Python.

    Hydra's state is restored afterwards. Calls from several threads run one after another.

    Raises:
        ConfigError: the settings ask for a sweep or for a command line option.
    """
    with _one_call:
        words, folders = overrides_and_folders(command, line)
        for word, expansion in zip(words, expand_task_groups(words, folders), strict=True):
            if expansion != word:
                raise ConfigError(f"{word}: a call performs one run; call {command} once for each of {expansion}")
        if not _is_plain(line, words):
            raise ConfigError(
                f"{' '.join([*line.options, *words])}: a call performs one run, without sweeps, options and Hydra "
                f"settings; call {command} once for each value, or use the command line"
            )
        with running_config(command, words, config_dir=line.config_dir) as cfg:
            if in_sweep():
                raise ConfigError(
                    "hydra.mode: a config asks for a sweep, but a call performs one run: use -m on the command line"
                )
            return run_once(command, cfg, **arguments)


def _is_plain(line: overrides.CommandLine, words: Sequence[str]) -> bool:
    """Whether a command line asks for a single run without Hydra's own features."""
    if line.is_sweep or not set(line.options) <= {"--config-dir", "-cd", line.config_dir}:
        return False
    try:
        parsed = [overrides.parse(override) for override in words]
    except ConfigError:
        return True  # composing the configuration raises the error
    return not any(override.is_sweep_override() or override.is_hydra_override() for override in parsed)


def overrides_and_folders(command: str, line: overrides.CommandLine) -> tuple[list[str], list[Path]]:
    """Return the overrides of a command line in Hydra's form, and the folders with configs."""
    folders = [paths.conf_dir()]
    if line.config_dir is not None:
        _check_config_dir(Path(line.config_dir))
        folders.append(Path(line.config_dir))
    words = [*_bare_words(command, line.bare), *line.overrides]
    if line.config_dir is not None:
        config_files.check_yaml_files(Path(line.config_dir), words, line.config_name or command)
    words = drop_null_groups(words, primary=line.config_name or command, folders=folders)
    overrides.check_overrides(words, folders)
    return words, folders


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
    for path in paths.shadowed_configs(folder):
        print(
            f"lmtransfer: warning: {folder / path} is ignored, because lmtransfer has its own {path}; rename your file",
            file=sys.stderr,
        )
