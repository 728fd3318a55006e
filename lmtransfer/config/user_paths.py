"""The settings that name files and folders: expands ``~`` and refuses mistakes before a command begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lmtransfer.errors import ConfigError
from lmtransfer.system.validation import join

#: Names of settings, at any depth, whose value is a path or a list of paths.
_PATHS = frozenset(
    {"init", "run", "runs", "source", "add", "input", "output", "to", "results", "data_root", "output_root"}
    | {"cache_dir", "tokenizer_from", "path"}
)
#: The same in a task, and settings that hold paths by name.
_OF_A_TASK = frozenset({"task.train", "task.dev", "task.test"})
_BY_NAME = frozenset({"task.files", "corpus.parts"})
#: The prefix of the folder of a published model.
_PREFIX = "hf:"


def resolve_paths(cfg: DictConfig) -> None:
    """Expand ``~``, and set paths to null that come from an empty environment variable.

    Args:
        cfg: the composed configuration; changed in place.

    Raises:
        ConfigError: paths are empty, contain a NUL character or name the home of an unknown user; lists all of them.
    """
    problems: list[str] = []
    for node, name, key in list(_found(cfg, "")):
        value = node[name]
        if value == "" and isinstance(node, DictConfig) and OmegaConf.is_interpolation(node, name):
            resolved: str | None = None
        else:
            resolved = _resolved(value, key, problems)
        if resolved != value:
            with open_dict(cfg):
                node[name] = resolved
    if problems:
        raise ConfigError(problems)


def _found(node: DictConfig | ListConfig, key: str, *, holds: bool = False) -> Iterator[tuple[Any, Any, str]]:
    """The texts that are paths: their node, their name or index in it, and their full key."""
    names = list(node) if isinstance(node, DictConfig) else list(range(len(node)))
    for name in names:
        where = join(key, name)
        try:
            value = node[name]
        except OmegaConfBaseException:  # missing or a broken interpolation: reported elsewhere
            continue
        is_path = holds or name in _PATHS or where in _OF_A_TASK
        if isinstance(value, str) and is_path:
            yield node, name, where
        elif isinstance(value, ListConfig) and not value._is_none():
            yield from _found(value, where, holds=is_path or where in _BY_NAME)
        elif isinstance(value, DictConfig) and not value._is_none():
            yield from _found(value, where, holds=where in _BY_NAME)


def _resolved(value: str, key: str, problems: list[str]) -> str:
    prefix = _PREFIX if value.startswith(_PREFIX) else ""
    path = value.removeprefix(prefix)
    if not path or path.isspace():
        problems.append(f"{key}={value}: is empty; give a path, or leave {key} out")
    elif "\0" in path:
        problems.append(f"{key}={value}: contains a NUL character, which a path must not have; remove it")
    elif path.startswith("~"):
        return prefix + _at_home(path, key, problems)
    return value


def _at_home(path: str, key: str, problems: list[str]) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        whose = path.partition("/")[0].removeprefix("~")
        if not whose and not os.environ.get("HOME"):
            problems.append(f"{key}={path}: there is no home folder (HOME is not set): set HOME, or give the full path")
        else:
            problems.append(
                f"{key}={path}: this machine has no user {whose!r}: write the full path, or ./{path} for a folder "
                "with this name"
            )
        return path
