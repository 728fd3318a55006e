"""Which budget and which learning rates are in effect."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, TypeVar

from lmtransfer.config.settings import CommandSettings, TrainSettings, TransferSettings
from lmtransfer.errors import ConfigError

T = TypeVar("T", bound=CommandSettings)
KINDS = ("steps", "tokens", "words", "epochs", "seconds")


def settle(settings: T, own: Mapping[str, Any]) -> T:
    """Return settings with one budget, so that the saved config is unambiguous, and with rates only if one is chosen.

    Args:
        own: the command's own config file.
    """
    changes: dict[str, Any] = {}
    if isinstance(train := getattr(settings, "train", None), TrainSettings):
        changes["train"] = with_one_budget(train, own.get("train") or {}, settings.given)
    if isinstance(settings, TransferSettings) and settings.learning_rates is not None and not _searches(settings):
        changes["learning_rates"] = None
    return settings.model_copy(update=changes)


def with_one_budget(train: TrainSettings, own: Mapping[str, Any], given: Container[str]) -> TrainSettings:
    """Return settings in which only the effective budget is not null.

    A budget on the command line takes precedence over one in a recipe, which takes precedence over the command's own.
    """
    values = {kind: getattr(train, kind) for kind in KINDS if getattr(train, kind) is not None}
    on_command_line = [kind for kind in values if f"train.{kind}" in given]
    in_files = [kind for kind in values if values[kind] != own.get(kind)]
    places = {"on the command line": on_command_line, "in the config files": in_files, "by the command": [*values]}
    where, kinds = next(((where, kinds) for where, kinds in places.items() if kinds), ("", []))
    if len(kinds) > 1:
        budgets = " and ".join(f"train.{kind}={values[kind]}" for kind in kinds)
        raise ConfigError(f"train: {budgets} are set {where}; keep one budget")
    changes: dict[str, None] = {kind: None for kind in values if kind not in kinds}
    settled = train.model_copy(update=changes)
    # min_steps of the command's own file goes with its epochs
    is_own = train.min_steps is not None and train.min_steps == own.get("min_steps")
    if is_own and "train.min_steps" not in given and ("train.epochs" in given or settled.epochs != own["epochs"]):
        return settled.model_copy(update={"min_steps": None})
    return settled


def check_budget(train: TrainSettings) -> None:
    """Check that there is a budget, in epochs if there is a minimum number of steps."""
    if all(getattr(train, kind) is None for kind in KINDS):
        raise ConfigError(f"train: no budget is set; set one of {', '.join(f'train.{kind}' for kind in KINDS)}")
    if train.min_steps is not None and train.epochs is None:
        kind = next(kind for kind in KINDS if getattr(train, kind) is not None)
        raise ConfigError(
            f"train.min_steps={train.min_steps} with train.{kind}={getattr(train, kind)}: min_steps "
            "only extends a budget in epochs; set train.min_steps=null, or keep train.epochs as the only budget"
        )


def _searches(settings: TransferSettings) -> bool:
    """Whether a learning rate is chosen: on examples that are not scored, unless the user gives a single rate."""
    if "learning_rates" in settings.given:
        return True
    if "optimizer.learning_rate" in settings.given:
        return False
    task = settings.task.values
    return task.get("folds") is None and (task.get("dev_from_train") is not None or settings.split != "dev")
