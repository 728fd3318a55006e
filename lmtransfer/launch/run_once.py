"""A single execution of a composed command. Machine errors become messages for the user."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from lmtransfer.config.budget import settle
from lmtransfer.config.check import read_settings
from lmtransfer.config.paths import expand_home
from lmtransfer.config.settings import COMMANDS, CommandSettings
from lmtransfer.config.sources import named_by_user
from lmtransfer.launch import overrides
from lmtransfer.launch.composing import Composed, compose
from lmtransfer.launch.config_files import drop_null_groups, primary_config, reference_config
from lmtransfer.runs.create_or_resume import remove_failed_starts
from lmtransfer.system import door, machine, ranks


def run_once(composed: Composed, **arguments: Any) -> Any:
    """Run a command once."""
    values, problems = _plain(composed)
    # The commands stand on this module; torch is imported only after the check.
    files = importlib.import_module("lmtransfer.commands._named_files")
    try:
        files.check_named_files(values)
        return run_as_is(_settings(composed, values, problems), composed.command, **arguments)
    except Exception as error:
        described = machine.fault(error, values)
        if described is None:
            raise
        raise described from error


def run_as_is(settings: CommandSettings, command: str, **arguments: Any) -> Any:
    """Run a command like ``run_once``, but raise machine errors unchanged."""
    if settings.note is not None and ranks.is_first():
        print(f"note: {settings.note}", file=sys.stderr)
    with command_door(settings, command), remove_failed_starts():
        return module_of(command).run(settings, **arguments)


def command_door(settings: CommandSettings, command: str) -> AbstractContextManager[None]:
    """Open the door to what the user names in the settings of a command."""
    return door.command(named_by_user(settings.plain(), command), has_trust=hasattr(settings, "trust"))


def settings_of(composed: Composed) -> CommandSettings:
    """Check a composed configuration, and return it as the settings of its command."""
    return _settings(composed, *_plain(composed))


def _plain(composed: Composed) -> tuple[dict[str, Any], dict[str, str]]:
    values, problems = composed.plain()
    return expand_home(values), problems


def _settings(composed: Composed, values: Mapping[str, Any], problems: Mapping[str, str]) -> CommandSettings:
    command = composed.command
    settings = read_settings(
        COMMANDS[command],
        values,
        command=command,
        known=reference_config(command, composed.choices, composed.folders),
        problems=problems,
    )
    origin = {
        "words": composed.words,
        "options": composed.options,
        "config_folders": tuple(composed.folders),
        "note": composed.note,
    }
    return settle(settings.model_copy(update=origin), primary_config(command))


def command_settings(command: str, words: Sequence[str], *, config_dir: str | None = None) -> CommandSettings:
    """Return the settings of ``lmtransfer <command> <words>``."""
    return settings_of(compose_words(command, words, config_dir=config_dir))


def compose_words(command: str, words: Sequence[str], *, config_dir: str | None = None) -> Composed:
    """Compose ``lmtransfer <command> <words>``, whose words are as the user types them."""
    typed = overrides.read(words).overrides
    return compose(command, drop_null_groups(typed, primary=command, config_dir=config_dir), config_dir=config_dir)


def checked_settings(command: str, words: Sequence[str], *, config_dir: str | None = None) -> CommandSettings:
    """Return settings like ``command_settings``, after the command's own check."""
    settings = command_settings(command, words, config_dir=config_dir)
    check_settings(settings, command)
    return settings


def check_settings(settings: CommandSettings, command: str) -> None:
    """Perform a command's own check of its settings, if it has one."""
    check: Callable[[Any], object] | None = getattr(module_of(command), "check_settings", None)
    if check is not None:
        with command_door(settings, command):
            check(settings)


def module_of(command: str) -> ModuleType:
    """Import the module with the command's ``run``."""
    return importlib.import_module(f"lmtransfer.commands.{command}")
