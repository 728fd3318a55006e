"""The choice of one budget out of several.

Exactly one of ``train.steps``, ``train.tokens``, ``train.epochs`` and ``train.seconds`` ends a run. A config file may
set one, and a user may add another. Then the command line wins over experiments and other groups, and those win over
the command's own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, open_dict

from lmtransfer.config.overrides import named_keys
from lmtransfer.config.plain import to_plain
from lmtransfer.config.primary import primary_config
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError

KINDS = ("steps", "tokens", "epochs", "seconds")


def complete_budget(cfg: DictConfig, *, primary: str, overrides: Sequence[str] | None = None) -> None:
    """Keep only the effective budget and set the others to null, so that the saved config is unambiguous.

    Args:
        cfg: the composed configuration; changed in place. Without ``train`` nothing happens.
        primary: name of the command's config file.
        overrides: the ``key=value`` of the command line; by default those of the running command.

    Raises:
        ConfigError: two budgets come from the same place.
    """
    train = cfg.get("train")
    if not isinstance(train, DictConfig):
        return
    kept = effective_kind(train, primary=primary, overrides=overrides)
    with open_dict(train):
        for kind in KINDS:
            if kept is not None and kind != kept and train.get(kind) is not None:
                train[kind] = None
        if _another_budget(train, primary=primary, overrides=overrides):
            train.min_steps = None


def _another_budget(train: DictConfig, *, primary: str, overrides: Sequence[str] | None) -> bool:
    """Whether another budget than that of the command's own file was chosen, but ``min_steps`` is still from there."""
    own = primary_config(primary).get("train") or {}
    if own.get("min_steps") is None or train.get("min_steps") != own["min_steps"]:
        return False
    named = named_keys(overrides)
    return "train.min_steps" not in named and ("train.epochs" in named or train.get("epochs") != own["epochs"])


def effective_train(cfg: DictConfig, *, primary: str, overrides: Sequence[str] | None = None) -> TrainSettings:
    """The settings of ``cfg.train`` with only the effective budget.

    Raises:
        ConfigError: there is no budget, two budgets come from the same place, or values do not fit.
    """
    complete_budget(cfg, primary=primary, overrides=overrides)
    settings = TrainSettings.from_config(cfg.train)
    if all(getattr(settings, kind) is None for kind in KINDS):
        raise ConfigError(f"train: there is no budget; set one of {', '.join(f'train.{kind}' for kind in KINDS)}")
    if settings.min_steps is not None and settings.epochs is None:
        kind = next(kind for kind in KINDS if getattr(settings, kind) is not None)
        raise ConfigError(
            f"train.min_steps={settings.min_steps} with train.{kind}={getattr(settings, kind)}: min_steps "
            "extends only a budget in epochs; set train.min_steps=null, or set only train.epochs"
        )
    return settings


def effective_kind(train: Any, *, primary: str, overrides: Sequence[str] | None = None) -> str | None:
    """The kind of the effective budget; None if none is set.

    Args:
        train: the node ``cfg.train``.
        primary: name of the command's config file.
        overrides: as for ``complete_budget``.

    Raises:
        ConfigError: two budgets come from the same place.
    """
    named = named_keys(overrides)
    own = primary_config(primary).get("train") or {}
    values, _ = to_plain(train, "train")
    present = [kind for kind in KINDS if values.get(kind) is not None]
    on_command_line = [kind for kind in present if f"train.{kind}" in named]
    in_files = [kind for kind in present if values[kind] != own.get(kind)]
    for kinds, where in ((on_command_line, "on the command line"), (in_files, "in the config files"), (present, "")):
        if len(kinds) > 1:
            given = " and ".join(f"train.{kind}={values[kind]}" for kind in kinds)
            raise ConfigError(f"train: {given} are set {where or 'in ' + primary}; keep one budget")
        if kinds:
            return kinds[0]
    return None
