"""Checks a whole configuration before any work starts, and reports all problems at once."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from lmtransfer.config.component import component_problems, is_component, outermost_components
from lmtransfer.config.config_files import primary_config, reference_config
from lmtransfer.config.nearest import hint
from lmtransfer.config.plain import is_broken, to_plain
from lmtransfer.config.settings import COMMANDS, Settings
from lmtransfer.errors import ConfigError
from lmtransfer.system.validation import Misfit, join, validate


def check(cfg: DictConfig, *, primary: str, nodes: Mapping[str, Set[str]] | None = None) -> None:
    """Check a whole configuration, and convert whole numbers written as floats (1e3) to integers.

    The check finds unknown keys at any depth and suggests the nearest names. It also finds missing values, broken
    interpolations, values of the wrong type or out of range, a ``_target_`` that is not allowed or does not exist, and
    missing arguments of a class.

    Args:
        nodes: the names of the arguments that the command supplies to each component that it builds, by the component's
            full key ("model", "objective.rows").
    """
    values, problems = to_plain(cfg, "")
    plain = PlainKeys(primary)
    plain.visit(values, reference_config(primary), COMMANDS[primary], key="")
    problems |= plain.problems
    of_primary = primary_config(primary)
    for key, value in outermost_components(values, ""):
        value = _without_own_keys(value, of_primary.get(key))
        problems |= component_problems(value, key=key, nodes=nodes or {}, complete=key in (nodes or {}))
    for key in nodes or {}:
        if problem := _node_problem(values, key):
            problems.setdefault(key, problem)
    if problems:
        raise ConfigError([f"{key}: {problem}" for key, problem in sorted(problems.items())])
    with open_dict(cfg):
        for key, value in plain.converted.items():
            OmegaConf.update(cfg, key, value)


def _without_own_keys(component: dict[str, Any], own: Any) -> dict[str, Any]:
    """Remove the keys that the command's own file adds to a component's node."""
    if not isinstance(own, dict) or is_component(own):
        return component
    return {name: value for name, value in component.items() if name not in own}


def _node_problem(values: Any, key: str) -> str | None:
    """Return the problem with a node that must be a component or null; None if none, or if it is reported elsewhere."""
    choose = f"choose one with {key.replace('.', '/')}=<name>"
    for part in key.split("."):
        if not isinstance(values, dict):
            return None
        if part not in values:
            return f"missing: {choose}"
        values = values[part]
    if values is None or is_broken(values) or is_component(values):
        return None
    return f"this node has no _target_, so it is not a component: {choose}"


class PlainKeys:
    """Checks keys that are not components.

    Attributes:
        converted: the values whose type was changed, keyed by full key.
    """

    def __init__(self, primary: str = "") -> None:
        self.primary = primary
        self.problems: dict[str, str] = {}
        self.converted: dict[str, Any] = {}

    def visit(self, values: dict[str, Any], known: dict[str, Any], settings: type[Settings], *, key: str) -> None:
        """Check the node at ``key``.

        Args:
            known: the same node in the config files, with all keys that exist.
        """
        names = list(known) or list(settings.model_fields)
        for name, value in values.items():
            where, default, model = join(key, name), known.get(name), settings.model_of(name)
            if where == "phases" or is_component(value):  # both are checked elsewhere
                continue
            if name not in names:
                what = f"keys of {key}" if key else f"keys of {self.primary}"
                self.problems[where] = f"there is no such key; {hint(name, names, what=what)}"
            elif model is not None and not (value is None and settings.may_be_null(name)):
                if isinstance(value, dict):
                    self.visit(value, default if isinstance(default, dict) else {}, model, key=where)
                elif not is_broken(value):
                    keys = default if isinstance(default, dict) else model.model_fields
                    self.problems[where] = f"{value!r} is not a group of keys; the keys are: {', '.join(keys)}"
            elif not is_broken(value):
                self._check_value(value, settings.annotation_of(name), where)

    def _check_value(self, value: Any, annotation: Any, where: str) -> None:
        try:
            converted = validate(value, annotation)
        except Misfit as misfit:
            self.problems[join(where, *misfit.where)] = str(misfit)
            return
        if isinstance(value, float) and isinstance(converted, int):
            self.converted[where] = converted
