"""Reads and checks configuration files before Hydra composes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml.reader import ReaderError

from lmtransfer.config import paths
from lmtransfer.errors import ConfigError
from lmtransfer.launch.overrides import hydra_problem
from lmtransfer.system.addresses import REMEDY, keys_with_credentials
from lmtransfer.system.safe_files import read_bytes, yaml_problem

PLAIN = "a config is plain YAML, key: value, in UTF-8"
_LONGEST = 200
_HEADER = re.compile(r"\s*#\s*@")
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*$")
#: A config has a few kilobytes, and Hydra needs about ten seconds to read a megabyte.
_MAX_BYTES = 1 << 20
#: Maximum number of values that the aliases in a config may repeat.
_MAX_REPEATED = 10_000


def load(path: Path) -> DictConfig:
    """Read a config file without resolving anything in it."""
    text = read_text(path)
    try:
        try:
            slow = yaml_problem(text, most_repeated=_MAX_REPEATED)
        except yaml.YAMLError:  # the error from PyYAML's own parser says more
            slow = yaml_problem(text, most_repeated=_MAX_REPEATED, loader=yaml.SafeLoader)
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
    """Read the text of a config file."""
    raw = read_bytes(path, error=ConfigError, most=_MAX_BYTES)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ConfigError(f"{path}:{line}: {what}") from None


def _broken(path: Path, reason: str, line: int | None = None) -> str:
    where = path if line is None else f"{path}:{line}"
    return f"{where}: the file cannot be read as a config: {reason[:_LONGEST]}; {PLAIN}"


def primary_config(name: str) -> dict[str, Any]:
    """Read a command's config file as plain data; the groups in its defaults list become keys with the value None."""
    groups, _, content = _read(paths.conf_dir() / f"{name}.yaml")
    return {_package(group).partition(".")[0]: None for group in groups} | content


def drop_null_groups(overrides: Sequence[str], *, primary: str, config_dir: str | None) -> list[str]:
    """Replace ``group=null`` with ``~group``, as Hydra requires; drop overrides of groups that nothing chooses."""
    folders = paths.config_folders(config_dir)
    path = paths.find(f"{primary}.yaml", folders)
    entries = (read_plain(path).get("defaults") or []) if path else []
    chosen = {group: choice for entry in entries if isinstance(entry, dict) for group, choice in entry.items()}
    values = dict(override.partition("=")[::2] for override in overrides)
    by_recipe = _groups_chosen_by(str(values.get("experiment", chosen.get("experiment"))), folders)
    remaining = []
    for override in overrides:
        key, _, value = override.partition("=")
        if value != "null" or not paths.is_group(key, folders):
            remaining.append(override)
        elif chosen.get(key, "") is not None or key in by_recipe:
            remaining.append(f"~{key}")
    return remaining


def _groups_chosen_by(recipe: str, folders: Sequence[Path]) -> set[str]:
    """Return the groups that an experiment, or one that it builds on, chooses."""
    packages: set[str] = set()
    names, known = [recipe], set()
    while names:
        name = names.pop()
        path = None if name in known else paths.find(f"experiment/{name}.yaml", folders)
        known.add(name)
        if path is not None:
            groups, bases, _ = _read(path)
            packages |= {_package(group) for group in groups}
            names += bases
    return packages


def reference_config(name: str, choices: Mapping[str, str | None], folders: Sequence[Path]) -> dict[str, Any]:
    """Read a command's config file like ``primary_config``, and add the keys of the groups that the user chose."""
    known = primary_config(name)
    by_package = {_package(group): (group, choice) for group, choice in choices.items()}
    for package in sorted(by_package):
        group, choice = by_package[package]
        if isinstance(choice, str) and not group.startswith("hydra/"):
            _put(known, package.split("."), group_config(group.partition("@")[0], choice, folders))
    return known


def group_config(group: str, choice: str, folders: Sequence[Path]) -> dict[str, Any] | None:
    """Read the file of ``group=choice`` as plain data, merged with the files of the same group in its defaults list.

    Returns:
        The data; None if there is no such file, or if its keys are not those of the group (as in an experiment).
    """
    path = paths.find(f"{group}/{choice}.yaml", folders)
    if path is None or "# @package _global_" in read_text(path):
        return None
    groups, bases, content = _read(path)
    inherited: dict[str, Any] = {}
    for base in bases:
        inherited |= group_config(group, sibling(choice, base), folders) or {}
    return inherited | {_package(inner).partition(".")[0]: None for inner in groups} | content


def sibling(choice: str, entry: str) -> str:
    """Return the file that an entry in a defaults list names, relative to the group's folder.

    Args:
        choice: the file that contains the list, relative to the group's folder, such as ``sst2`` or ``base/nli``.
        entry: a name relative to the folder of ``choice``, such as ``classification@_here_``.
    """
    folder, _, _ = choice.rpartition("/")
    name = entry.partition("@")[0]
    return f"{folder}/{name}" if folder else name


def _read(path: Path) -> tuple[list[str], list[str], dict[str, Any]]:
    """Read a file; return the groups and the files in its defaults list, and its other content."""
    content = read_plain(path)
    entries = content.pop("defaults", None) or []
    groups = [str(group) for entry in entries if isinstance(entry, Mapping) for group in entry]
    files = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    return groups, files, content


def read_plain(path: Path) -> dict[str, Any]:
    """Read a config file as plain data, without resolving anything in it."""
    return deepcopy(_parse(path, path.read_bytes()))


@cache
def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """Parse a file; results are cached by content, because a command reads a file many times and YAML is slow."""
    loaded = OmegaConf.to_container(load(path))
    return {str(key): value for key, value in loaded.items()} if isinstance(loaded, dict) else {}


def _package(group: str) -> str:
    """Return the key at which a group's config is put: ``objective.rows``, or ``teacher`` for ``model@teacher``."""
    name, _, package = group.removeprefix("override ").removeprefix("optional ").partition("@")
    return (package or name).strip("/").replace("/", ".")


def _put(known: dict[str, Any], path: list[str], content: dict[str, Any] | None) -> None:
    """Put a group's content at its key, unless the key already has a value."""
    for part in path[:-1]:
        inner = known.get(part)
        if not isinstance(inner, dict):
            return
        known = inner
    if known.get(path[-1]) is None:
        known[path[-1]] = content


def check_yaml_files(folder: Path, overrides: Sequence[str], primary: str) -> None:
    """Reject the broken, empty or unsafe files that a command would read from the user's folder."""
    words = [(word.partition("=")[0].lstrip("+"), word.partition("=")[2]) for word in overrides]
    choices = [(group, choice.strip("'\"[] ")) for group, value in words for choice in value.split(",")]
    pending: list[tuple[str, str, tuple[Path, ...]]] = [
        (group, choice, ()) for group, choice in [("", primary), *choices]
    ]
    problems, seen = [], set[Path]()
    while pending:
        group, choice, above = pending.pop(0)
        path = _in_folder(folder, group.partition("@")[0], choice)
        if path in above:
            problems.append(
                f"{path}: its defaults list leads back to this file; remove the entry from one file of the cycle"
            )
        if path is None or path in seen:
            continue
        seen.add(path)
        try:
            content = load(path)
            bases = list(_bases_of(content, str(path.parent.relative_to(folder)), path))
        except ConfigError as error:
            problems += error.problems
            continue
        if not content:
            problems.append(f"{path}: the file is empty; {PLAIN}")
        elif (problem := _package_problem(group, path)) is not None:
            problems.append(problem)
        problems += [f"{path}: {where}: {REMEDY}" for where in keys_with_credentials(_unresolved(content))]
        problems += [f"{path}: {problem}" for problem in map(hydra_problem, _hydra_words(content)) if problem]
        pending += [(group, choice, (*above, path)) for group, choice in bases]
    if problems:
        raise ConfigError(problems)


def _unresolved(content: DictConfig) -> Any:
    return OmegaConf.to_container(content, resolve=False)


def _package_problem(group: str, path: Path) -> str | None:
    """Explain that a recipe lacks the line that makes its keys those of the whole config; None if it has the line.

    Without this line, Hydra puts the keys of ``experiment/mine.yaml`` under ``experiment``, where nothing reads them.
    """
    top = group.strip("/").partition("/")[0]
    ours = next(iter(sorted((paths.conf_dir() / top).glob("*.yaml"))), None) if top and "@" not in group else None
    if ours is None or _package_line(read_text(ours)) != "_global_":
        return None
    text = read_text(path)
    if _package_line(text) not in (None, "_group_", top):
        return None
    late = next((number for number, line in enumerate(text.splitlines(), 1) if _PACKAGE.match(line)), None)
    note = "" if late in (None, 1) else f"; in line {late}, after other lines, such a line has no effect"
    return (
        f"{path}:1: the file sets keys of the whole config, so its first line must be # @package _global_: add this "
        f"line{note}"
    )


def _package_line(text: str) -> str | None:
    """Return the package that a config file states; Hydra stops searching at the first line of another kind."""
    for line in filter(str.strip, text.splitlines()):
        package = _PACKAGE.match(line)
        if package is not None or not _HEADER.match(line):
            return None if package is None else package[1]
    return None


def _in_folder(folder: Path, group: str, choice: str) -> Path | None:
    if not choice or ".." in f"{group}/{choice}" or "\0" in f"{group}{choice}" or group.startswith(("~", "hydra")):
        return None
    path = folder / group / f"{choice.removesuffix('.yaml')}.yaml"
    try:
        return path if path.exists() or path.is_symlink() else None
    except OSError:  # the value cannot be a file name
        return None


def _bases_of(content: DictConfig, group: str, path: Path) -> Iterator[tuple[str, str]]:
    entries = content._get_node("defaults")
    if entries is None:
        return
    if not isinstance(entries, ListConfig) or not all(isinstance(entry, str | DictConfig) for entry in entries):
        raise ConfigError(f"{path}: defaults must be a list of config names and of group: choice entries")
    for entry in entries:
        if isinstance(entry, str) and entry != "_self_":
            name = entry.partition("@")[0]
            yield ("", name.lstrip("/")) if name.startswith("/") else (group, name)
        elif isinstance(entry, DictConfig):
            for key, choice in entry.items():
                name = str(key).removeprefix("override ").removeprefix("optional ")
                where = name.lstrip("/") if name.startswith("/") else f"{group}/{name}"
                if isinstance(choice, str):
                    yield where.removeprefix("./"), choice


def _hydra_words(content: DictConfig) -> Iterator[str]:
    plain: Any = OmegaConf.to_container(content)
    pending: list[tuple[str, Any]] = [("hydra", plain.get("hydra"))]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict) and not key.startswith("hydra.sweeper.params"):
            pending += [(f"{key}.{name}", item) for name, item in value.items()]
        elif value is not None:
            yield f"{key}={value}"
    for entry in plain.get("defaults") or []:
        for name, choice in entry.items() if isinstance(entry, dict) else [(entry, "")]:
            yield f"{str(name).removeprefix('optional ').removeprefix('override ').lstrip('/')}={choice}"
