"""Explains why Hydra rejects a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lmtransfer.config import paths
from lmtransfer.config.component import Argument, arguments_of, resolve
from lmtransfer.config.nearest import hint, list_names, nearest_name, translate_key
from lmtransfer.errors import ConfigError
from lmtransfer.launch import overrides
from lmtransfer.launch.recipes import FITTED

#: Hydra's errors when it cannot compose.
REFUSALS = (HydraException, OmegaConfBaseException, ValueError, YAMLError, RecursionError)


def diagnose(
    error: Exception,
    *,
    command: str,
    words: Sequence[str],
    folders: list[Path],
    is_sweep: bool,
    compose: Callable[[Sequence[str]], DictConfig],
) -> ConfigError:
    """Return the error to show in place of Hydra's error.

    Args:
        compose: composes the command's config with other overrides.
    """
    problems: list[str] = []
    groups: list[Override] = []
    keys: list[Override] = []
    for text in words:
        try:
            override = overrides.parse(text)
        except ConfigError as unreadable:
            problems.extend(unreadable.problems)
            continue
        if override.is_sweep_override() and not is_sweep:
            problems.append(
                f"{text}: several values need -m (one run for each value); write a list as "
                f"{override.key_or_group}=[a,b], and quote text with commas twice: \"{override.key_or_group}='a, b'\""
            )
        elif paths.is_group(override.key_or_group, folders):
            wrong = _wrong_choices(override, folders)
            problems.extend(wrong)
            if not wrong and not override.is_sweep_override():
                groups.append(override)
        elif not (override.is_add() or override.is_force_add() or override.is_hydra_override()):
            keys.append(override)
    try:
        reference = compose([str(group.input_line) for group in groups])
    except REFUSALS as cause:
        return ConfigError(problems or _explain(error if groups else cause, folders))
    problems.extend(problem for override in keys for problem in _unknown_key(override, reference, command))
    return ConfigError(problems or _explain(error, folders))


def _wrong_choices(override: Override, folders: list[Path]) -> list[str]:
    group, value = override.key_or_group, override.value()
    names: list[Any]
    if isinstance(value, Sweep):
        names = list(override.sweep_iterator()) if override.is_discrete_sweep() else []
    else:
        names = value if isinstance(value, list) else [value]
    options = paths.group_options(group, folders)
    return [
        f"{group}={name}: there is no such {group}; {hint(str(name), options, what=f'choices for {group}')}"
        for name in names
        if name is not None
        and paths.find(f"{group}/{str(name).removesuffix('.yaml')}.yaml", folders) is None
        and not override.is_delete()
    ]


def _unknown_key(override: Override, reference: DictConfig, command: str) -> list[str]:
    """Return the problem with a key that the composed configuration does not have; empty if the key exists."""
    key = override.key_or_group
    if _has(reference, key):
        return []
    parent = key.rpartition(".")[0]
    while parent and not isinstance(OmegaConf.select(reference, parent), DictConfig):
        parent = parent.rpartition(".")[0]
    node = OmegaConf.select(reference, parent) if parent else reference
    siblings = [str(name) for name in node]
    text = str(override.input_line)
    exact = parent == key.rpartition(".")[0]
    if exact and "_target_" in node:
        arguments = arguments_if_known(node["_target_"])
        last = key.rpartition(".")[2]
        if last in arguments and arguments[last].required:
            return [f"{text}: the command sets {key}; leave it out"]
        deeper = [f"{parent}.{name}" for name in _all_keys(node) if name.endswith(f".{last}")]
        if last in arguments and deeper:  # for example task.files.train for task.train
            instead = f"{deeper[0]}{text[len(key) :]}" if text.startswith(f"{key}=") else deeper[0]
            return [f"{text}: in the config of {parent}, this key is called {deeper[0]}; write {instead}"]
        if last in arguments:
            return [f"{text}: the config of {parent} leaves {key} at its default; to set it, write +{text}"]
        siblings += [name for name in arguments if name not in siblings]
    group = key.partition(".")[0]
    if group != key and group in _groups(reference) and OmegaConf.select(reference, group) is None:
        return [f"{text}: nothing is chosen for {group}; first choose {group}=<name> (lmtransfer {command} --help)"]
    siblings = sorted(name for name in siblings if not name.startswith("_") and name != "hydra")
    everywhere = [*_all_keys(reference), *(f"{parent}.{name}" for name in siblings if parent), *_groups(reference)]
    suggested = translate_key(key, everywhere)
    if suggested is None and parent and exact:
        suggested = nearest_name(key.rpartition(".")[2], siblings)
        suggested = suggested and f"{parent}.{suggested}"
    elif suggested is None:
        suggested = nearest_name(key, dict.fromkeys(everywhere))
    suggestion = f"did you mean '{suggested}'? " if suggested else ""
    return [f"{text}: there is no such key; {suggestion}{parent or command} has: {list_names(siblings)}"]


def arguments_if_known(target: object) -> Mapping[str, Argument]:
    """Return the arguments of the class that a ``_target_`` names; none if configs may not name it."""
    try:
        return arguments_of(resolve(target))
    except ConfigError:
        return {}


def _has(reference: DictConfig, key: str) -> bool:
    node: Any = reference
    for part in key.split("."):
        if isinstance(node, ListConfig):
            if not part.isdigit() or int(part) >= len(node):
                return False
            node = node[int(part)]
        elif isinstance(node, DictConfig) and part in node.keys():  # noqa: SIM118 - "in" is false for missing values
            node = node._get_node(part)
        else:
            return False
    return True


def _all_keys(node: Any, prefix: str = "") -> list[str]:
    """List the full keys of all nodes and values below a node."""
    if not isinstance(node, DictConfig) or node._is_none():
        return []
    keys = []
    for name in map(str, node):
        keys.append(f"{prefix}{name}")
        keys.extend(_all_keys(node._get_node(name), f"{prefix}{name}."))
    return keys


def _groups(reference: DictConfig) -> list[str]:
    return sorted(str(group) for group in reference.hydra.runtime.choices if not str(group).startswith("hydra"))


def _explain(error: Exception, folders: list[Path]) -> list[str]:
    """Explain one of Hydra's messages, or only shorten the message if there is no better explanation."""
    message = (str(error).strip() or str(error.__cause__ or type(error).__name__)).replace(FITTED, "")
    missing = re.match(r"You must specify '([^']+)'", message)
    if missing:
        exists = list_names(paths.group_options(missing[1], folders))
        return [f"{missing[1]}: choose one with {missing[1]}=<name>; the choices are: {exists}"]
    lost = re.match(r"In '([^']+)': Could not find '([^']+)/([^'/]+)'", message)
    if lost and (options := paths.group_options(lost[2], folders)):
        file, group, name = lost.groups()
        known = hint(name, options, what=f"choices for {group}")
        return [f"{file}.yaml: there is no {group}/{name}; {known}"]
    message = message.partition("\nConfig search path:")[0].partition("\nSee https://hydra.cc")[0]
    if error.__cause__ is not None and str(error.__cause__) not in message:
        message += f"\n{error.__cause__}"
    return ["\n".join(line.rstrip() for line in message.splitlines() if line.strip())]
