"""Checking a value from a config against a type annotation, and converting it.

YAML and the command line have only text, numbers, booleans, null, lists and mappings, so ``1e3`` is a float where an
integer is needed, and a list is used for a tuple. Such values are accepted if the conversion loses nothing.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from lmtransfer.config.target import all_bases, is_subclass

_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "text", Path: "a path", type(None): "null"}


_PLAIN = (type(None), bool, int, float, str, Path, list, tuple, dict)


class Broken:
    """Replaces a value that is missing or cannot be resolved; it fits every type, its problem is reported elsewhere."""

    def __repr__(self) -> str:
        return "..."


BROKEN = Broken()


@dataclass(frozen=True, slots=True, repr=False)
class Unbuilt:
    """Takes the place of a component during a check, before anything is built.

    Attributes:
        component: its class.
    """

    component: type

    def __repr__(self) -> str:
        return self.component.__name__


class Misfit(ValueError):
    """A value that does not fit its annotation; the message follows ``key:``."""


def convert(value: Any, annotation: Any) -> Any:
    """Convert ``value`` to the type of ``annotation``.

    Args:
        value: plain data (None, bool, int, float, str, list, dict), or a component, which fits only an annotation that
            asks for a component: its own class, or a class that it inherits from.
        annotation: an evaluated type hint. ``Any`` accepts all plain data.

    Raises:
        Misfit: the value does not fit; 3.0 fits ``int``, 3 fits ``float`` and ``str``, a list fits ``tuple``.
    """
    origin = typing.get_origin(annotation)
    if value is BROKEN:
        return value
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return _plain(value, annotation)
    if origin is typing.Annotated:
        return convert(value, typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _convert_union(value, annotation)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in typing.get_args(annotation)):
            return value
        raise _misfit(value, annotation)
    if not isinstance(value, _PLAIN):
        return _component(value, annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation](value)
    container = origin or annotation
    if isinstance(container, type):
        if issubclass(container, Sequence):
            return _convert_sequence(value, annotation, container)
        if issubclass(container, Mapping):
            return _convert_mapping(value, annotation)
    raise _misfit(value, annotation)


def _component(value: Any, annotation: Any) -> Any:
    """A component that fits its annotation; only the bases of components, and what inherits from them, ask for one."""
    own = value.component if isinstance(value, Unbuilt) else type(value)
    if isinstance(annotation, type) and is_subclass(annotation, all_bases()) and annotation in own.__mro__:
        return value
    raise _misfit(value, annotation)


def _plain(value: Any, annotation: Any) -> Any:
    """Plain data of any kind, without a component inside."""
    if not isinstance(value, _PLAIN) and value is not BROKEN:
        raise _misfit(value, annotation)
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _plain(item, annotation)
    return value


def is_text(annotation: Any) -> bool:
    """Whether all values of an annotation are text: words, paths, lists or mappings of them; null does not count."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return is_text(arguments[0])
    if origin in (Union, types.UnionType):
        return all(is_text(member) for member in arguments if member is not type(None))
    if origin is Literal:
        return all(isinstance(choice, str) for choice in arguments)
    container = origin or annotation
    if not isinstance(container, type) or issubclass(container, (str, Path)):
        return isinstance(container, type)
    items = arguments[-1:] if issubclass(container, Mapping) else [item for item in arguments if item is not Ellipsis]
    return issubclass(container, (Mapping, Sequence)) and bool(items) and all(is_text(item) for item in items)


def mapping_items(annotation: Any) -> Any:
    """The type of the values of a mapping (or null); Any for another annotation."""
    for member in (annotation, *typing.get_args(annotation)):
        container = typing.get_origin(member)
        if isinstance(container, type) and issubclass(container, Mapping):
            return typing.get_args(member)[-1]
    return Any


def describe(annotation: Any) -> str:
    """The annotation in words: "an integer or null"."""
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return "plain text, numbers, lists or mappings"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _NOUNS:
        return _NOUNS[annotation]
    if origin is typing.Annotated:
        return describe(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(argument) for argument in arguments))
    if origin is Literal:
        names = [str(argument) for argument in arguments]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    container = origin or annotation
    if container is os.PathLike:
        return "a path"
    if isinstance(container, type) and issubclass(container, Mapping):
        values = [argument for argument in arguments[1:] if argument is not Any]
        return f"a mapping (each value {describe(values[0])})" if values else "a mapping"
    if isinstance(container, type) and issubclass(container, Sequence):
        items = [argument for argument in arguments if argument is not Ellipsis]
        if origin is tuple and Ellipsis not in arguments and items:
            return f"a list of {len(items)}: " + ", ".join(describe(item) for item in items)
        return f"a list (each item {describe(items[0])})" if items else "a list"
    return f"a component (a node whose _target_ is a {getattr(annotation, '__name__', annotation)})"


def _misfit(value: Any, annotation: Any) -> Misfit:
    if not isinstance(value, _PLAIN):
        own = value.component if isinstance(value, Unbuilt) else type(value)
        return Misfit(f"the component {own.__name__} does not fit here, where the value must be {describe(annotation)}")
    shown = "null" if value is None else repr(value) if not isinstance(value, bool) else str(value).lower()
    return Misfit(f"{shown} is not {describe(annotation)}")


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise _misfit(value, int)
    if int(value) != value:
        raise _misfit(value, int)
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _misfit(value, float)
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _misfit(value, bool)
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        raise Misfit(f"{_misfit(value, str)} (in a YAML file yes, no, on and off are true and false: quote them)")
    if not isinstance(value, (str, int, float)):
        raise _misfit(value, str)
    return str(value)


def _path(value: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise _misfit(value, Path)
    return Path(value)


def _null(value: Any) -> None:
    if value is not None:
        raise _misfit(value, type(None))


_SCALARS: dict[Any, Any] = {
    int: _integer,
    float: _number,
    bool: _boolean,
    str: _text,
    Path: _path,
    type(None): _null,
    None: _null,
}


def _convert_union(value: Any, annotation: Any) -> Any:
    members = typing.get_args(annotation)
    exact = [member for member in members if isinstance(member, type) and type(value) is member]
    for member in [*exact, *members]:
        try:
            return convert(value, member)
        except Misfit:
            continue
    raise _misfit(value, annotation)


def _convert_sequence(value: Any, annotation: Any, container: type) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _misfit(value, annotation)
    arguments = typing.get_args(annotation)
    if container is tuple and arguments and Ellipsis not in arguments:
        if len(value) != len(arguments):
            raise _misfit(value, annotation)
        return tuple(convert(item, argument) for item, argument in zip(value, arguments, strict=True))
    item_type = arguments[0] if arguments else Any
    items = [convert(item, item_type) for item in value]
    return tuple(items) if container is tuple else items


def _convert_mapping(value: Any, annotation: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _misfit(value, annotation)
    key_type, item_type = typing.get_args(annotation) or (Any, Any)
    return {convert(key, key_type): convert(item, item_type) for key, item in value.items()}
