"""Checks a whole configuration before any work starts, and reports all problems at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from lmtransfer.config.component import BROKEN, Node, Supplied, component_problems, is_broken, is_component
from lmtransfer.config.nearest import hint
from lmtransfer.config.settings import CommandSettings, Settings
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
) -> T:
    """Check the plain data of a composed configuration, and return it as the settings of a command.

    Args:
        values: the configuration, with ``BROKEN`` in place of each value that has one of ``problems``.
        known: the keys of the command's config files; None for all that ``kind`` has.

    Raises:
        ConfigError: all problems at once, sorted by key.
    """
    reader = _Reader(problems or {})
    settings = reader.group(kind, values, known, "", what=f"keys of {command}")
    reader.raise_problems()
    return settings


def read_group(kind: type[S], values: Mapping[str, Any], *, key: str) -> S:
    """Check and return a group of keys; other keys than those of ``kind`` stay as they are.

    Raises:
        ConfigError: all problems at once, sorted by key.
    """
    reader = _Reader({})
    settings = reader.group(kind, values, values, key, what=f"keys of {key}")
    reader.raise_problems()
    return settings


def group_problems(kind: type[Settings], values: Mapping[str, Any], *, key: str) -> dict[str, str]:
    """Find the problems with a group of keys, by full key."""
    reader = _Reader({})
    reader.group(kind, values, None, key, what=f"keys of {key}")
    return reader.problems


class _Reader:
    """Turns plain data into settings, and collects the problems by full key."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)

    def raise_problems(self) -> None:
        if self.problems:
            raise ConfigError([f"{key}: {problem}" for key, problem in sorted(self.problems.items())])

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
