"""The content of the configuration files before any composition: how they are read, and their keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml.reader import ReaderError

from lmtransfer.config import paths
from lmtransfer.errors import ConfigError
from lmtransfer.system.safe_files import read_bytes, yaml_problem

PLAIN = "a config is plain YAML, key: value, in UTF-8"
_LONGEST = 200
#: A config has some kilobytes, and Hydra reads a megabyte in about ten seconds.
_MOST_BYTES = 1 << 20
#: How many values the aliases of a config may repeat.
_MOST_REPEATED = 10_000


def load(path: Path) -> DictConfig:
    """Read a config file without resolving anything in it.

    Raises:
        ConfigError: it cannot be read, or is not a mapping of keys to values; with ``file:line`` if known.
    """
    text = read_text(path)
    try:
        try:
            slow = yaml_problem(text, most_repeated=_MOST_REPEATED)
        except yaml.YAMLError:  # the error of PyYAML's own parser says more
            slow = yaml_problem(text, most_repeated=_MOST_REPEATED, loader=yaml.SafeLoader)
        if slow is not None:
            raise ConfigError(f"{path}:{slow[0]}: {slow[1]}")
        loaded = OmegaConf.load(path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(_broken(path, reason, None if mark is None else mark.line + 1)) from error
    except ReaderError as error:
        raise ConfigError(_broken(path, str(error).splitlines()[0], text.count("\n", 0, error.position) + 1)) from error
    except yaml.YAMLError as error:
        raise ConfigError(_broken(path, str(error).splitlines()[0])) from error
    except RecursionError:
        raise ConfigError(_broken(path, "its nodes are nested too deeply")) from None
    except (OmegaConfBaseException, OSError, TypeError, ValueError) as error:  # YAML that a config cannot hold
        raise ConfigError(_broken(path, str(error).partition("\n")[0])) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("# @package") and len(line.split()) != 3:
            raise ConfigError(
                f"{path}:{number}: '{line[:60]}' is not a valid package line: write # @package _global_, or "
                "# @package and one key"
            )
    if not isinstance(loaded, DictConfig):
        raise ConfigError(_broken(path, "it is a list"))
    return loaded


def read_text(path: Path) -> str:
    """Read the text of a config file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    raw = read_bytes(path, error=ConfigError, most=_MOST_BYTES)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError(f"{path}:{line}: {what}") from None


def _broken(path: Path, reason: str, line: int | None = None) -> str:
    where = path if line is None else f"{path}:{line}"
    return f"{where}: cannot be read as a config: {reason[:_LONGEST]}; {PLAIN}"


def primary_config(name: str) -> dict[str, Any]:
    """Read a command's config file as plain data; the groups of its defaults list become keys with value None.

    Args:
        name: name of the file, without ``.yaml``.
    """
    groups, _, content = _read(paths.conf_dir() / f"{name}.yaml")
    return {_package(group).partition(".")[0]: None for group in groups} | content


def drop_null_groups(overrides: Sequence[str], *, primary: str, folders: Sequence[Path]) -> list[str]:
    """Replace ``group=null`` by Hydra's form ``~group``; drop it if the group is null already.

    A group that is null in the command's file may still be chosen by an experiment.

    Args:
        overrides: overrides of the command line.
        primary: name of the command's config file.
        folders: config folders.
    """
    path = paths.find(f"{primary}.yaml", folders)
    loaded = OmegaConf.to_container(load(path)) if path else {}
    entries = (loaded.get("defaults") or []) if isinstance(loaded, dict) else []
    chosen = {group: choice for entry in entries if isinstance(entry, dict) for group, choice in entry.items()}
    given = dict(override.partition("=")[::2] for override in overrides)
    by_recipe = _chosen_by(str(given.get("experiment", chosen.get("experiment"))), folders)
    kept = []
    for override in overrides:
        key, _, value = override.partition("=")
        if value != "null" or not paths.is_group(key, folders):
            kept.append(override)
        elif chosen.get(key, "") is not None or key in by_recipe:
            kept.append(f"~{key}")
    return kept


def _chosen_by(recipe: str, folders: Sequence[Path]) -> set[str]:
    """The groups that an experiment, or an experiment that it builds on, chooses."""
    found: set[str] = set()
    names, known = [recipe], set()
    while names:
        name = names.pop()
        path = None if name in known else paths.find(f"experiment/{name}.yaml", folders)
        known.add(name)
        if path is not None:
            groups, bases, _ = _read(path)
            found |= {_package(group) for group in groups}
            names += bases
    return found


def own_folder() -> str | None:
    """The user's folder of configs (``--config-dir``) of the running command; None: there is none."""
    return next((str(folder) for folder in folders_in_force() if folder.resolve() != paths.conf_dir()), None)


def folders_in_force() -> list[Path]:
    """The config folders of the running command, in search order."""
    if not HydraConfig.initialized():
        return [paths.conf_dir()]
    return paths.searched(HydraConfig.get().runtime.config_sources)


def reference_config(name: str) -> dict[str, Any]:
    """The same as ``primary_config``, with the keys of the groups that the running command has chosen."""
    known = primary_config(name)
    if not HydraConfig.initialized():
        return known
    folders, chosen = folders_in_force(), HydraConfig.get().runtime.choices
    choices = {_package(str(group)): (str(group), choice) for group, choice in chosen.items()}
    for package in sorted(choices):
        group, choice = choices[package]
        if isinstance(choice, str) and not group.startswith("hydra/"):
            _put(known, package.split("."), group_config(group.partition("@")[0], choice, folders))
    return known


def group_config(group: str, choice: str, folders: Sequence[Path]) -> dict[str, Any] | None:
    """Read the file of ``group=choice`` as plain data, merged with the files of the same group that it builds on.

    Returns:
        None if there is no such file, or if its keys do not belong to the group (an experiment).
    """
    path = paths.find(f"{group}/{choice}.yaml", folders)
    if path is None or "# @package _global_" in read_text(path):
        return None
    groups, bases, content = _read(path)
    found: dict[str, Any] = {}
    for base in bases:
        found |= group_config(group, sibling(choice, base), folders) or {}
    return found | {_package(inner).partition(".")[0]: None for inner in groups} | content


def sibling(choice: str, entry: str) -> str:
    """The file that an entry of a defaults list names, seen from the group of the file that has the list.

    Args:
        choice: the file with the list, relative to its group, such as ``sst2`` or ``base/nli``.
        entry: a name relative to that file's folder, such as ``classification@_here_``.
    """
    folder, _, _ = choice.rpartition("/")
    name = entry.partition("@")[0]
    return f"{folder}/{name}" if folder else name


def _read(path: Path) -> tuple[list[str], list[str], dict[str, Any]]:
    """The groups in a file's defaults list, the files named there, and the other content."""
    content = deepcopy(_parsed(path, path.read_bytes()))
    entries = content.pop("defaults", None) or []
    groups = [str(group) for entry in entries if isinstance(entry, Mapping) for group in entry]
    files = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    return groups, files, content


@cache
def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    """Parse a file; cached by content, since a command needs a file many times and reading YAML is slow."""
    loaded = OmegaConf.to_container(load(path))
    return {str(key): value for key, value in loaded.items()} if isinstance(loaded, dict) else {}


def _package(group: str) -> str:
    """The key that a group's config fills: ``model``, ``objective.rows``; ``teacher`` for ``model@teacher``."""
    name, _, package = group.removeprefix("override ").removeprefix("optional ").partition("@")
    return (package or name).strip("/").replace("/", ".")


def _put(known: dict[str, Any], path: list[str], content: dict[str, Any] | None) -> None:
    """Put a group's content at its key, unless the file above sets it."""
    for part in path[:-1]:
        inner = known.get(part)
        if not isinstance(inner, dict):
            return
        known = inner
    if known.get(path[-1]) is None:
        known[path[-1]] = content
