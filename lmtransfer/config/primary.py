"""What the config files themselves say, before any composition: which keys there are, and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lmtransfer.config import paths, yaml_files


def primary_config(name: str) -> dict[str, Any]:
    """A command's config file as plain data; the groups of its defaults list appear as keys with value None.

    Args:
        name: of the file, without ``.yaml``.
    """
    groups, _, content = _read(paths.conf_dir() / f"{name}.yaml")
    return {_package(group).partition(".")[0]: None for group in groups} | content


def drop_null_groups(overrides: Sequence[str], *, primary: str, folders: Sequence[Path]) -> list[str]:
    """Overrides with ``group=null`` in the way that Hydra has for it: ``~group``, or nothing where it is null already.

    A group that is null in the command's file may be chosen by its experiment.

    Args:
        overrides: of the command line.
        primary: name of the command's config file.
        folders: config folders.
    """
    path = paths.find(f"{primary}.yaml", folders)
    loaded = OmegaConf.to_container(yaml_files.load(path)) if path else {}
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
    """The groups that an experiment chooses, and those that it builds on."""
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


def folders_in_force() -> list[Path]:
    """The config folders of the running command, in the order in which they are searched."""
    if not HydraConfig.initialized():
        return [paths.conf_dir()]
    return paths.searched(HydraConfig.get().runtime.config_sources)


def reference_config(name: str) -> dict[str, Any]:
    """As ``primary_config``, with the keys of the groups chosen in the running command filled in."""
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
    """The file of ``group=choice`` as plain data, with the files of the same group that it builds on.

    Returns:
        None if there is no such file, or if its keys do not belong to the group (an experiment).
    """
    path = paths.find(f"{group}/{choice}.yaml", folders)
    if path is None or "# @package _global_" in yaml_files.read_text(path):
        return None
    groups, bases, content = _read(path)
    found: dict[str, Any] = {}
    for base in bases:
        found |= group_config(group, base, folders) or {}
    return found | {_package(inner).partition(".")[0]: None for inner in groups} | content


def _read(path: Path) -> tuple[list[str], list[str], dict[str, Any]]:
    """The groups of a file's defaults list, the files that it names there, and its other content."""
    content = deepcopy(_parsed(path, path.read_bytes()))
    entries = content.pop("defaults", None) or []
    groups = [str(group) for entry in entries if isinstance(entry, Mapping) for group in entry]
    files = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    return groups, files, content


@cache
def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    """A file, kept while its content is the same: a command asks for a file a dozen times, and reading YAML is slow."""
    loaded = OmegaConf.to_container(yaml_files.load(path))
    return {str(key): value for key, value in loaded.items()} if isinstance(loaded, dict) else {}


def _package(group: str) -> str:
    """The key where a group's config lands: ``model``, ``objective.rows``; ``teacher`` for ``model@teacher``."""
    name, _, package = group.removeprefix("override ").removeprefix("optional ").partition("@")
    return (package or name).strip("/").replace("/", ".")


def _put(known: dict[str, Any], path: list[str], content: dict[str, Any] | None) -> None:
    """Place a group's content where it lands, unless the file above it says more."""
    for part in path[:-1]:
        inner = known.get(part)
        if not isinstance(inner, dict):
            return
        known = inner
    if known.get(path[-1]) is None:
        known[path[-1]] = content
