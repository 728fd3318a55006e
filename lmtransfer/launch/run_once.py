"""A single execution of a composed command. Settings errors and machine errors become messages for the user."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from lmtransfer.config.check import read_settings
from lmtransfer.config.composing import command_config
from lmtransfer.config.config_files import config_folders, reference_config
from lmtransfer.config.effective import complete_values
from lmtransfer.config.overrides import command_line_overrides
from lmtransfer.config.plain import to_plain
from lmtransfer.config.settings import COMMANDS, CommandSettings
from lmtransfer.config.sources import named_by_user
from lmtransfer.errors import ConfigError
from lmtransfer.runs.create_or_resume import remove_failed_starts
from lmtransfer.system import door, machine


def run_once(command: str, cfg: DictConfig, **arguments: Any) -> Any:
    """Run a command once."""
    try:
        return run_as_is(command, cfg, **arguments)
    except Exception as error:
        described = to_user_error(error, cfg)
        if described is error:
            raise
        raise described from error


def run_as_is(command: str, cfg: DictConfig, **arguments: Any) -> Any:
    """Run a command like ``run_once``, but raise settings errors and machine errors unchanged."""
    complete_values(cfg, command)
    with door.command(named_by_user(cfg, command), has_trust="trust" in cfg), remove_failed_starts():
        return module_of(command).run(settings_of(command, cfg), **arguments)


def settings_of(command: str, cfg: DictConfig) -> CommandSettings:
    """Check a completed configuration, and return it as the settings of the command."""
    values, problems = to_plain(cfg, "")
    return read_settings(
        COMMANDS[command],
        values,
        command=command,
        known=reference_config(command),
        problems=problems,
        words=command_line_overrides(),
        config_folders=config_folders(),
    )


def command_settings(command: str, words: Sequence[str], *, config_dir: str | None = None) -> CommandSettings:
    """Return the settings of ``lmtransfer <command> <words>``."""
    with command_config(command, words, config_dir=config_dir) as cfg:
        return settings_of(command, cfg)


def checked_settings(command: str, words: Sequence[str], *, config_dir: str | None = None) -> CommandSettings:
    """Return settings like ``command_settings``, after the command's own check."""
    with command_config(command, words, config_dir=config_dir) as cfg:
        settings = settings_of(command, cfg)
        if (check := settings_check(command)) is not None:
            check(settings)
        return settings


def module_of(command: str) -> ModuleType:
    """Import the module with the command's ``run``."""
    return importlib.import_module(f"lmtransfer.commands.{command}")


def settings_check(command: str) -> Callable[[Any], object] | None:
    """Return the function that checks a command's settings before work starts; None if it checks them as it runs."""
    return getattr(module_of(command), "check_settings", None)


def to_user_error(error: Exception, cfg: DictConfig) -> Exception:
    """Turn a missing value, a broken reference or a machine error into an error for the user; return others as is."""
    if isinstance(error, (MissingMandatoryValue, InterpolationResolutionError)):
        where = f"{error.full_key}: " if error.full_key else ""
        described = ConfigError(where + str(error).splitlines()[0])
        described.__cause__ = error
        return described
    return machine.fault(error, _plain(cfg)) or error


def _plain(cfg: DictConfig) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException:
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=False))
