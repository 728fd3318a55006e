"""Checks a whole configuration before any work starts, and reports all problems at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf, open_dict

from lmtransfer.config.component import Node, Supplied, component_problems, is_component, outermost_components
from lmtransfer.config.config_files import primary_config, reference_config
from lmtransfer.config.nearest import hint
from lmtransfer.config.plain import BROKEN, is_broken, to_plain
from lmtransfer.config.settings import COMMANDS, CommandSettings, Settings
from lmtransfer.errors import ConfigError
from lmtransfer.system.validation import Misfit, join, validate

S = TypeVar("S", bound=Settings)
T = TypeVar("T", bound=CommandSettings)


def read_settings(
    kind: type[T],
    values: Mapping[str, Any],
    *,
    command: str,
    known: Mapping[str, Any] | None = None,
    problems: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    config_folders: Sequence[Path] = (),
) -> T:
    """Check the plain data of a composed configuration, and return it as the settings of a command.

    Args:
        values: the configuration, with ``BROKEN`` in place of each value that has one of ``problems``.
        known: the keys of the command's config files; None for all that ``kind`` has.
        words: the overrides of the user.
        config_folders: the folders in which configs are found.

    Raises:
        ConfigError: all problems at once, sorted by key.
    """
    reader = _Reader(problems or {})
    settings = reader.group(kind, values, known, "", what=f"keys of {command}")
    if reader.problems:
        raise ConfigError([f"{key}: {problem}" for key, problem in sorted(reader.problems.items())])
    return settings.model_copy(update={"words": tuple(words), "config_folders": tuple(config_folders)})


class _Reader:
    """Turns plain data into settings, and collects the problems by full key."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)

    def group(self, kind: type[S], values: Mapping[str, Any], known: Any, key: str, *, what: str) -> S:
        """Read a group of keys; with problems, the settings are incomplete.

        Args:
            known: the same group in the config files, with all keys that exist.
        """
        known = known if isinstance(known, Mapping) else {}
        fields = [name for name, field in kind.model_fields.items() if not field.exclude and name != kind.component]
        names = list(known) or fields
        own: dict[str, Any] = {}
        if kind.component is not None:
            node = {name: value for name, value in values.items() if name not in fields}
            values = {name: value for name, value in values.items() if name in fields}
            own[kind.component] = self._value(node, kind.annotation_of(kind.component), None, key)
        for name, value in values.items():
            if name in names:
                own[name] = self._value(value, kind.annotation_of(name), known.get(name), join(key, name))
            else:
                self.problems[join(key, name)] = f"there is no such key; {hint(name, names, what=what)}"
        for name in fields:
            has_default = not kind.model_fields[name].is_required() and kind.model_fields[name].default is not None
            if name not in values and not has_default and not kind.may_be_null(name):
                where = join(key, name)
                missing = _choose(where) if _is_part(kind.annotation_of(name)) else f"set {where}=<value>"
                self.problems[where] = f"missing: {missing}"
        return kind.model_construct(**own)

    def _value(self, value: Any, annotation: Any, known: Any, where: str) -> Any:
        alternatives = _alternatives(annotation)
        if value is BROKEN or (value is None and type(None) in alternatives):
            return None
        for kind in alternatives:
            if isinstance(kind, type) and issubclass(kind, Settings):
                return self._group_value(kind, value, known, where)
            if (supplied := _supplied(kind)) is not None:
                return self._node(value, supplied, where)
            if typing.get_origin(kind) is Mapping and _is_part(inner := typing.get_args(kind)[1]):
                return self._several(value, inner, where)
        if not is_broken(value):
            try:
                converted = validate(value, annotation)
            except Misfit as misfit:
                self.problems[join(where, *misfit.where)] = str(misfit)
                return None
            is_whole = isinstance(value, float) and isinstance(converted, int)  # 1e3; all else stays as it was written
            return converted if is_whole else value
        return None

    def _group_value(self, kind: type[Settings], value: Any, known: Any, where: str) -> Settings | None:
        if isinstance(value, dict):
            return self.group(kind, value, known, where, what=f"keys of {where}")
        keys = ", ".join(known if isinstance(known, Mapping) else kind.model_fields)
        self.problems[where] = f"{value!r} is not a group of keys; the keys are: {keys}"
        return None

    def _several(self, values: Any, inner: Any, where: str) -> Mapping[str, Any]:
        """Read a mapping from the user's own names to components, or to groups whose keys are checked elsewhere."""
        if is_component(values):
            self.problems[join(where, "_target_")] = (
                f"there can be several, so each has its own key: write {where}.<name>._target_"
            )
        elif isinstance(values, dict):
            return {name: self._value(value, inner, value, join(where, name)) for name, value in values.items()}
        else:
            self.problems[where] = f"{values!r} is not a mapping of names to components: {_choose(where)}"
        return {}

    def _node(self, value: Any, supplied: Supplied, where: str) -> Node[Any] | None:
        if value is None:
            self.problems[where] = f"null is not allowed: leave it out, or {_choose(where)}"
        elif not is_component(value):
            self.problems[where] = f"this node has no _target_, so it is not a component: {_choose(where)}"
        else:
            self.problems |= component_problems(value, key=where, nodes={where: supplied.names}, complete=True)
            return Node(value, where)
        return None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _supplied(annotation: Any) -> Supplied | None:
    """Return what the command supplies to the component of an annotation; None if it is no component."""
    return next((part for part in typing.get_args(annotation) if isinstance(part, Supplied)), None)


def _is_part(annotation: Any) -> bool:
    """Whether an annotation is a component, a group of keys, or a mapping of these."""
    if typing.get_origin(annotation) is Mapping:
        return _is_part(typing.get_args(annotation)[1])
    return _supplied(annotation) is not None or (isinstance(annotation, type) and issubclass(annotation, Settings))


def _choose(key: str) -> str:
    return f"choose one with {key.replace('.', '/')}=<name>"


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
    choose = _choose(key)
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
