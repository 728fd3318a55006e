"""Completes a composed configuration: resolves paths, and settles the budget and the learning-rate search."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lmtransfer.config.config_files import primary_config
from lmtransfer.config.overrides import override_keys
from lmtransfer.config.paths import PATH_SETTINGS
from lmtransfer.config.phases import complete_phases
from lmtransfer.config.plain import literal, to_plain
from lmtransfer.config.settings import COMMANDS, TrainSettings
from lmtransfer.config.short_forms import expand_overlap, expand_parts
from lmtransfer.errors import ConfigError
from lmtransfer.system.addresses import REMEDY, keys_with_credentials
from lmtransfer.system.validation import join, texts

_LOOK_UP = re.compile(r"\$\{[^{}]*:")  # ${oc.env:HOME}, resolved here or in the started commands


def complete_values(cfg: DictConfig, command: str) -> None:
    """Complete paths, short forms, phases and the budget, and decide whether to search rates; refuse credentials."""
    written: Any = OmegaConf.to_container(cfg, resolve=False)
    private = [*keys_with_credentials(written)]
    if private:
        raise ConfigError([f"{key}: {REMEDY}" for key in private])
    _refuse_look_ups({name: written.get(name) for name in COMMANDS[command].only_text}, command)
    resolve_paths(cfg)
    expand_parts(cfg)
    expand_overlap(cfg)
    complete_phases(cfg)
    complete_budget(cfg, primary=command)
    complete_learning_rates(cfg)


def _refuse_look_ups(written: Mapping[str, Any], command: str) -> None:
    """Refuse texts that read a value from the machine, which are another value on another machine."""
    problems = [
        f"{key}: {text[:60]!r} reads a value from this machine, but a {command} may contain only plain text: write the "
        "value itself"
        for key, text in texts(written, "")
        if _LOOK_UP.search(text)
    ]
    if problems:
        raise ConfigError(problems)


#: Further settings with paths, in a task.
_TASK_PATHS = frozenset({"task.train", "task.dev", "task.test"})
_BY_NAME = frozenset({"task.files", "corpus.parts"})
#: The prefix of a published model's folder or name.
_PREFIX = "hf:"


def resolve_paths(cfg: DictConfig) -> None:
    """Expand ``~``, and set paths from empty environment variables to null."""
    problems: list[str] = []
    for node, name, key in list(_path_texts(cfg, "")):
        value = node[name]
        if value == "" and isinstance(node, DictConfig) and OmegaConf.is_interpolation(node, name):
            path: str | None = None
        else:
            path = _resolve(value, key, problems)
        if path != value:
            with open_dict(cfg):
                node[name] = literal(path)
    if problems:
        raise ConfigError(problems)


def _path_texts(node: DictConfig | ListConfig, key: str, *, holds: bool = False) -> Iterator[tuple[Any, Any, str]]:
    """Yield each path in a node: its parent node, its name or index in the parent, and its full key."""
    names = list(node) if isinstance(node, DictConfig) else list(range(len(node)))
    for name in names:
        where = join(key, name)
        try:
            value = node[name]
        except OmegaConfBaseException:  # a missing value or a broken interpolation, which are reported elsewhere
            continue
        is_path = holds or name in PATH_SETTINGS or where in _TASK_PATHS
        if isinstance(value, str) and is_path:
            yield node, name, where
        elif isinstance(value, ListConfig) and not value._is_none():
            yield from _path_texts(value, where, holds=is_path or where in _BY_NAME)
        elif isinstance(value, DictConfig) and not value._is_none():
            yield from _path_texts(value, where, holds=where in _BY_NAME)


def _resolve(value: str, key: str, problems: list[str]) -> str:
    prefix = _PREFIX if value.startswith(_PREFIX) else ""
    path = value.removeprefix(prefix)
    if not path or path.isspace():
        problems.append(f"{key}={value}: the path is empty; set a path, or leave {key} out")
    elif "\0" in path:
        problems.append(f"{key}={value}: a path must not contain a NUL character; remove it")
    elif path.startswith("~"):
        return prefix + _at_home(path, key, problems)
    return value


def _at_home(path: str, key: str, problems: list[str]) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        whose = path.partition("/")[0].removeprefix("~")
        if not whose and not os.environ.get("HOME"):
            problems.append(
                f"{key}={path}: the home folder is unknown (HOME is not set): set HOME, or write the full path"
            )
        else:
            problems.append(
                f"{key}={path}: this machine has no user {whose!r}: write the full path, or ./{path} if the folder has "
                "this name"
            )
        return path


KINDS = ("steps", "tokens", "words", "epochs", "seconds")


def complete_budget(cfg: DictConfig, *, primary: str) -> None:
    """Set all budgets except the effective one to null, so that the saved config is unambiguous."""
    train = cfg.get("train")
    if not isinstance(train, DictConfig):
        return
    budget = effective_kind(train, primary=primary)
    with open_dict(train):
        for kind in KINDS:
            if budget is not None and kind != budget and train.get(kind) is not None:
                train[kind] = None
        if _another_budget(train, primary=primary):
            train.min_steps = None


def _another_budget(train: DictConfig, *, primary: str) -> bool:
    """Whether ``min_steps`` comes from the command's own file but the budget does not."""
    own = primary_config(primary).get("train") or {}
    if own.get("min_steps") is None or train.get("min_steps") != own["min_steps"]:
        return False
    named = override_keys()
    return "train.min_steps" not in named and ("train.epochs" in named or train.get("epochs") != own["epochs"])


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


def effective_kind(train: Any, *, primary: str) -> str | None:
    """Return the kind of the effective budget; None if no budget is set.

    A budget on the command line takes precedence over one in a recipe, which takes precedence over the command's own.
    """
    named = override_keys()
    own = primary_config(primary).get("train") or {}
    values, _ = to_plain(train, "train")
    present = [kind for kind in KINDS if values.get(kind) is not None]
    on_command_line = [kind for kind in present if f"train.{kind}" in named]
    in_files = [kind for kind in present if values[kind] != own.get(kind)]
    for kinds, where in ((on_command_line, "on the command line"), (in_files, "in the config files"), (present, "")):
        if len(kinds) > 1:
            budgets = " and ".join(f"train.{kind}={values[kind]}" for kind in kinds)
            raise ConfigError(f"train: {budgets} are set {where or 'in ' + primary}; keep one budget")
        if kinds:
            return kinds[0]
    return None


def complete_learning_rates(cfg: DictConfig) -> None:
    """Set ``learning_rates`` to null if only ``optimizer.learning_rate`` is used."""
    if cfg.get("learning_rates") is None:
        return
    named = override_keys()
    if "learning_rates" in named:
        return
    if "optimizer.learning_rate" in named or not _holds_out(cfg):
        cfg.learning_rates = None


def _holds_out(cfg: DictConfig) -> bool:
    """Whether a learning rate can be chosen on examples that are not scored; cross-validation scores all examples."""
    task = cfg.get("task")
    if not isinstance(task, DictConfig):
        return True
    return task.get("folds") is None and (task.get("dev_from_train") is not None or cfg.get("split") != "dev")
