"""Running a composed command once, with errors of the settings and of the machine as messages for the user."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from lmtransfer.config.effective import complete_values
from lmtransfer.errors import ConfigError
from lmtransfer.runs.lock import failed_starts_removed
from lmtransfer.system import machine


def run_once(command: str, cfg: DictConfig, **arguments: Any) -> Any:
    """Run a command once.

    Args:
        cfg: its composed settings.
        arguments: further arguments of the command's ``run``.

    Returns:
        What the command returns.

    Raises:
        LmtransferError: a mistake of the user, or an error of the machine or of the command.
    """
    try:
        return run_as_is(command, cfg, **arguments)
    except Exception as error:
        described = as_user_error(error, cfg)
        if described is error:
            raise
        raise described from error


def run_as_is(command: str, cfg: DictConfig, **arguments: Any) -> Any:
    """As ``run_once``, but errors of the settings and of the machine are raised as they are."""
    complete_values(cfg, command)
    with failed_starts_removed():
        return module_of(command).run(cfg, **arguments)


def module_of(command: str) -> ModuleType:
    """The module with the command's ``run``."""
    return importlib.import_module(f"lmtransfer.commands.{command}")


def settings_check(command: str) -> Callable[[DictConfig], object] | None:
    """What checks the settings of a command before any work; None: the command checks them as it goes."""
    return getattr(module_of(command), "check_settings", None)


def as_user_error(error: Exception, cfg: DictConfig) -> Exception:
    """Turn a missing value, a broken reference or an error of the machine into a message; keep other errors."""
    if isinstance(error, (MissingMandatoryValue, InterpolationResolutionError)):
        where = f"{error.full_key}: " if error.full_key else ""
        described = ConfigError(where + str(error).splitlines()[0])
        described.__cause__ = error
        return described
    return machine.fault(error, _plain(cfg)) or error


def _plain(cfg: DictConfig) -> dict[str, Any]:
    """The settings as plain data, resolved if that is possible."""
    try:
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException:
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=False))
