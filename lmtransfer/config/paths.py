"""The locations of configuration files, and the names of settings that are paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmtransfer.errors import ConfigError
from lmtransfer.system.validation import join

#: The names of settings, at any depth, that are a path or a list of paths.
PATH_SETTINGS = frozenset(
    {"init", "run", "runs", "source", "add", "input", "output", "to", "results", "data_root", "output_root"}
    | {"cache_dir", "tokenizer_from", "base", "path"}
)
#: Further settings with paths.
_TASK_PATHS = frozenset({"task.train", "task.dev", "task.test", "task.files"})
#: The prefix of a published model's folder or name.
_PREFIX = "hf:"


def conf_dir() -> Path:
    """Return the folder of the built-in configs: inside the package in a wheel, next to the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


def config_folders(config_dir: str | None) -> list[Path]:
    """Return the folders with configs: the built-in one, then the user's (``--config-dir``)."""
    return [conf_dir(), *([Path(config_dir).absolute()] if config_dir else [])]


def own_folder(folders: Sequence[Path]) -> str | None:
    """Return the user's folder (``--config-dir``) among config folders; None if there is none."""
    return next((str(folder) for folder in folders if folder != conf_dir()), None)


def find(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the path of the file ``name`` in the first folder that contains it; None if no folder does."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def group_options(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the choices of a group, sorted."""
    files = (path for folder in folders for path in (folder / group).glob("*.yaml"))
    return sorted({path.stem for path in files})


def is_group(name: str, folders: Sequence[Path]) -> bool:
    """Whether ``name`` is a config group in one of ``folders``."""
    return bool(name) and any((folder / name).is_dir() for folder in folders)


def shadowed_configs(folder: Path) -> list[Path]:
    """List the configs in a user's folder that are never read, because a built-in config has the same relative path."""
    own = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    return sorted(path for path in own if (conf_dir() / path).is_file())


def expand_home(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in which the paths that begin with ``~`` are full paths.

    Raises:
        ConfigError: a path is empty or contains a NUL character, or there is no such home folder.
    """
    problems: list[str] = []

    def expand(value: Any, key: str, is_path: bool) -> Any:
        if isinstance(value, str):
            return _expand(value, key, problems) if is_path else value
        if isinstance(value, list):
            return [expand(item, join(key, place), is_path) for place, item in enumerate(value)]
        if isinstance(value, dict):
            return {
                name: expand(item, where, key == "task.files" or name in PATH_SETTINGS or where in _TASK_PATHS)
                for name, item in value.items()
                for where in [join(key, name)]
            }
        return value

    expanded: dict[str, Any] = expand(values, "", is_path=False)
    if problems:
        raise ConfigError(problems)
    return expanded


def _expand(value: str, key: str, problems: list[str]) -> str:
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
