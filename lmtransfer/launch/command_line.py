"""Runs a command from the command line or from Python.

Hydra composes the configuration. It writes no files, does not change the directory and does not print errors.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig

from lmtransfer.config import paths
from lmtransfer.config.sweep_names import as_point
from lmtransfer.errors import ConfigError
from lmtransfer.launch import command_help, config_files, overrides
from lmtransfer.launch.composing import compose, quote_texts, refusal
from lmtransfer.launch.config_files import drop_null_groups
from lmtransfer.launch.overrides import CommandLine
from lmtransfer.launch.recipes import fit_recipe
from lmtransfer.launch.refusals import REFUSALS
from lmtransfer.launch.run_once import run_once
from lmtransfer.launch.short_forms import expand_task_groups

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
    expanded = expand_task_groups(settings, folders)
    line.is_sweep = line.is_sweep or expanded != settings
    if line.asks:
        _answer(command, line, expanded, folders)
        return 0
    if not (line.is_sweep or _recipe_sweeps(command, line, settings, folders)):
        composed = compose(command, settings, config_name=line.config_name, config_dir=line.config_dir)
        if line.point is not None or not composed.is_sweep:
            with as_point(line.point):
                run_once(composed)
            return 0
    from lmtransfer.launch.sweep import run_sweep  # slow, and not needed for --help

    return run_sweep(command, line, expanded, folders)


def _recipe_sweeps(command: str, line: CommandLine, words: Sequence[str], folders: Sequence[Path]) -> bool:
    """Whether there are several values without ``-m``, and a recipe asks for a sweep."""
    try:
        if not any(overrides.parse(word).is_sweep_override() for word in words):
            return False
        first = overrides.first_values(words, folders)
        return compose(command, first, config_name=line.config_name, config_dir=line.config_dir).is_sweep
    except ConfigError:
        return False  # composing the configuration raises the same error


def _answer(command: str, line: CommandLine, words: Sequence[str], folders: Sequence[Path]) -> None:
    """Print what the options ask for: the help page, or what Hydra tells about the configuration."""
    primary = line.config_name or command
    words = quote_texts(words, command=primary, config_dir=line.config_dir)
    fitted = fit_recipe(primary, words, folders).words
    saved, errors = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"lmtransfer {command}", *line.options, *(["-m"] if line.is_sweep else []), *fitted]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    try:
        if {"--help", "-h"}.isdisjoint(line.options):
            hydra.main(version_base="1.3", config_path=str(paths.conf_dir()), config_name=command)(lambda cfg: None)()
        else:
            first = overrides.first_values(words, folders) if line.is_sweep else words
            print(command_help.page(command, first, primary=primary, config_dir=line.config_dir))
    except REFUSALS as error:
        raise refusal(error, command, words, line.config_name, line.config_dir, is_sweep=line.is_sweep) from error
    finally:
        HydraConfig.instance().cfg = None
        sys.argv = saved
        del os.environ["HYDRA_FULL_ERROR"]
        os.environ |= {} if errors is None else {"HYDRA_FULL_ERROR": errors}


def call_command(command: str, line: CommandLine, **arguments: Any) -> Any:
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
        options = line.is_sweep or line.asks or line.config_name is not None or line.point is not None
        if options or not all(map(_is_plain, words)):
            raise ConfigError(
                f"{' '.join([*line.options, *words])}: a call performs one run, without sweeps, options and Hydra "
                f"settings; call {command} once for each value, or use the command line"
            )
        composed = compose(command, words, config_dir=line.config_dir)
        if composed.is_sweep:
            raise ConfigError(
                "hydra.mode: a config asks for a sweep, but a call performs one run: use -m on the command line"
            )
        return run_once(composed, **arguments)


def _is_plain(word: str) -> bool:
    """Whether an override has one value and changes no Hydra setting."""
    try:
        override = overrides.parse(word)
    except ConfigError:
        return True  # composing the configuration raises the error
    return not (override.is_sweep_override() or override.is_hydra_override())


def overrides_and_folders(command: str, line: CommandLine) -> tuple[list[str], list[Path]]:
    """Return the overrides of a command line in Hydra's form, and the folders with configs."""
    folders = paths.config_folders(line.config_dir)
    if line.config_dir is not None:
        _check_config_dir(Path(line.config_dir))
    words = [*_bare_words(command, line.bare), *line.overrides]
    if line.config_dir is not None:
        config_files.check_yaml_files(Path(line.config_dir), words, line.config_name or command)
    words = drop_null_groups(words, primary=line.config_name or command, config_dir=line.config_dir)
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
