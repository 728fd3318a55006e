"""Validates plain data against types with pydantic, and writes messages about problems.

Plain data comes from YAML, JSON or a command line: null, booleans, numbers, text, lists and mappings. It is validated
as strict JSON: 3 is a number and an integer, 3.0 and 1e3 are integers too, "3" and true are neither, and 3 is not text.
A list matches a tuple, and text matches a path.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, Required, Union

import annotated_types
import pydantic
from typing_extensions import is_typeddict

LARGEST_INTEGER = 2**63 - 1
_MAX_CHARACTERS = 60
_MAX_PROBLEMS = 1000
_CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True)
_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "text", Path: "a path", type(None): "null"}
_NOT_TEXT = "is not text (in a YAML file, write it in quotes)"
_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_long", "too_short")


class Misfit(ValueError):
    """Raised if a value does not match its type; the caller puts the key of the whole value before the message.

    Args:
        where: keys and positions that lead from the whole value to the wrong one.
    """

    def __init__(self, where: Sequence[str | int], value: Any, expected: str, message: str | None = None) -> None:
        super().__init__(message or f"{describe_value(value)} is not {expected}")
        self.where, self.value, self.expected = tuple(where), value, expected


def join(key: str, *names: object) -> str:
    """Return the full key of a value: ``objective.rows`` for a name, ``runs[0]`` for a list index."""
    for name in names:
        key = f"{key}[{name}]" if isinstance(name, int) else f"{key}.{name}" if key else str(name)
    return key


def validate(value: Any, annotation: Any) -> Any:
    """Return the value converted to the type of the annotation.

    Args:
        value: plain data, which may hold objects that the annotation expects by class.

    Raises:
        Misfit: the value does not match.
    """
    normal = _normal(value, ())
    try:
        content = json.dumps(normal, ensure_ascii=False).encode()
    except (TypeError, ValueError):  # the value holds an object, or the name of a file that is not UTF-8
        content = None
    try:
        if content is None:
            return _adapter(annotation).validate_python(normal, strict=True)
        return _adapter(annotation).validate_json(content, strict=True)
    except pydantic.ValidationError as error:
        raise _misfit(error, value, annotation) from None


def check(value: Any, annotation: Any) -> None:
    """Check plain data without conversion: 3.0 is not an integer. A TypedDict may have additional keys.

    Raises:
        Misfit: the value does not match.
    """
    try:
        _adapter(annotation).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        raise _misfit(error, value, annotation) from None


@functools.cache
def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):  # a component, which its own node builds
        return pydantic.TypeAdapter(typing.Annotated[annotation, pydantic.InstanceOf()])
    has_config = is_typeddict(annotation) or (
        isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)
    )
    return pydantic.TypeAdapter(annotation, config=None if has_config else _CONFIG)


def _normal(value: Any, where: tuple[str | int, ...]) -> Any:
    """Return the value with whole numbers as integers, so that 1e3 is a valid integer; pydantic restores floats."""
    if isinstance(value, Mapping):
        for name in value:
            if name is None or isinstance(name, bool):  # JSON would turn these into text
                raise Misfit(where, name, "text", f"the key {describe_value(name)} {_NOT_TEXT}")
        return {name: _normal(item, (*where, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(item, (*where, place)) for place, item in enumerate(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Misfit(where, value, "a finite number")
        return int(value) if value.is_integer() and abs(value) <= LARGEST_INTEGER else value
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise Misfit(where, value, "a number of 64 bits")
    return os.fspath(value) if isinstance(value, Path) else value


def _misfit(error: pydantic.ValidationError, value: Any, annotation: Any) -> Misfit:
    """Return the most deeply nested problem; of several alternatives, only the matching list or mapping counts."""
    if error.error_count() > _MAX_PROBLEMS:  # a hostile document could have millions
        return Misfit((), value, f"{describe(annotation)}: {error.error_count():,} of its values have the wrong type")
    problems = error.errors(include_url=False, include_input=False)
    misfits = [locate(problem, value, annotation) for problem in problems]
    return max(misfits, key=lambda misfit: len(misfit.where))  # the first of the deepest


def locate(problem: Any, value: Any, annotation: Any) -> Misfit:
    """Describe one of the problems that pydantic found with a value, and where in the value it is."""
    where: list[str | int] = []
    kind = problem["type"]
    for name in problem["loc"]:
        inner = inner_type(_matching(annotation, value), name)
        if kind == "missing" and isinstance(value, Mapping) and name not in value and inner is not None:
            return Misfit((*where, name), None, describe(inner), "is missing")
        if not _has(value, name):
            continue  # the name of an alternative
        if inner is None:
            break
        where.append(name)
        annotation, value = inner, value[name]
    only = _plain(_without_null(annotation)) if value is not None else annotation
    if kind == "value_error":  # from one of our validators
        return Misfit(where, value, describe(annotation), str(problem["ctx"]["error"]))
    if kind == "extra_forbidden":
        return Misfit(problem["loc"], value, "a known key", "there is no such key")
    if kind == "finite_number":
        return Misfit(where, value, "a finite number")
    if kind == "too_short":
        least = f"it needs at least {problem['ctx']['min_length']}"
        return Misfit(where, value, describe(annotation), f"{describe_value(value)} has too few entries: {least}")
    if kind in _RANGES and only in (int, float):
        expected = _bounds(annotation)
        return Misfit(where, value, expected, f"{describe_value(value)} is out of range: it must be {expected}")
    if isinstance(value, bool | int | float) and only is str:
        return Misfit(where, value, "text", f"{describe_value(value)} {_NOT_TEXT}")
    return Misfit(where, value, describe(annotation))


def _has(value: Any, name: str | int) -> bool:
    if isinstance(value, Mapping):
        return name in value
    return isinstance(value, list | tuple) and isinstance(name, int) and name < len(value)


def inner_type(annotation: Any, name: str | int) -> Any:
    """Return the type of the value at a key or index of a non-null value; None if the annotation leaves it open."""
    plain = _plain(_without_null(annotation))
    if is_typeddict(plain):
        hint = typing.get_type_hints(plain, include_extras=True).get(str(name))
        return typing.get_args(hint)[0] if typing.get_origin(hint) in (Required, NotRequired) else hint
    if isinstance(plain, type) and issubclass(plain, pydantic.BaseModel):
        field = plain.model_fields.get(str(name))
        return None if field is None else field.rebuild_annotation()
    container, arguments = typing.get_origin(plain) or plain, typing.get_args(plain)
    if not isinstance(container, type) or not arguments:
        return None
    if issubclass(container, Mapping):
        return arguments[1]
    if container is tuple and Ellipsis not in arguments:
        return arguments[name] if isinstance(name, int) and name < len(arguments) else None
    return arguments[0] if issubclass(container, Sequence) else None


def is_text(annotation: Any) -> bool:
    """Whether all values of a type are text: words, paths, lists or mappings of text; null does not count."""
    plain = _plain(annotation)
    if len(members := _alternatives(plain)) > 1:
        return all(is_text(member) for member in members if member is not type(None))
    container, arguments = typing.get_origin(plain) or plain, typing.get_args(plain)
    if container is Literal:
        return all(isinstance(choice, str) for choice in arguments)
    if not isinstance(container, type) or issubclass(container, (str, Path)):
        return isinstance(container, type)
    items = arguments[-1:] if issubclass(container, Mapping) else [item for item in arguments if item is not Ellipsis]
    return issubclass(container, (Mapping, Sequence)) and bool(items) and all(is_text(item) for item in items)


def listed_values(annotation: Any) -> list[str]:
    """Return the values that a type names, as they stand in a config file: literals, true, false and null."""
    plain = _plain(annotation)
    if len(members := _alternatives(plain)) > 1:
        return [value for member in members for value in listed_values(member)]
    if typing.get_origin(plain) is Literal:
        return [str(value) for value in typing.get_args(plain)]
    return {bool: ["true", "false"], type(None): ["null"]}.get(plain, [])


def _matching(annotation: Any, value: Any) -> Any:
    """Return the one alternative for a list or a mapping; the annotation itself if there are several."""
    container = Mapping if isinstance(value, Mapping) else Sequence
    members = [member for member in _alternatives(annotation) if _is_container(_plain(member), container)]
    return members[0] if len(members) == 1 else annotation


def _is_container(annotation: Any, container: type) -> bool:
    own = typing.get_origin(annotation) or annotation
    if is_typeddict(own) or (isinstance(own, type) and issubclass(own, pydantic.BaseModel)):
        return container is Mapping
    return isinstance(own, type) and issubclass(own, container) and not issubclass(own, str)


def _without_null(annotation: Any) -> Any:
    """Return the one alternative besides null; the annotation itself if there are several."""
    members = _alternatives(annotation)
    left = [member for member in members if member is not type(None)]
    return left[0] if len(members) > 1 and len(left) == 1 else annotation


def _alternatives(annotation: Any) -> Sequence[Any]:
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _plain(annotation: Any) -> Any:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def describe(annotation: Any) -> str:
    """Describe the annotation: "an integer or null"."""
    plain = _plain(annotation)
    arguments = typing.get_args(plain)
    if plain is Any or isinstance(plain, typing.TypeVar):
        return "plain text, numbers, lists or mappings"
    if plain in _NOUNS:
        return _NOUNS[plain]
    if len(_alternatives(plain)) > 1:
        return " or ".join(dict.fromkeys(describe(member) for member in _alternatives(plain)))
    if typing.get_origin(plain) is Literal:
        names = [str(argument) for argument in arguments]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    container = typing.get_origin(plain) or plain
    if container is os.PathLike:
        return "a path"
    if is_typeddict(plain) or (isinstance(plain, type) and issubclass(plain, pydantic.BaseModel)):
        return "a mapping"
    if isinstance(container, type) and issubclass(container, Mapping):
        values = [argument for argument in arguments[1:] if argument is not Any]
        return f"a mapping (each value {describe(values[0])})" if values else "a mapping"
    if isinstance(container, type) and issubclass(container, Sequence):
        items = [argument for argument in arguments if argument is not Ellipsis]
        if container is tuple and Ellipsis not in arguments and items:
            return f"a list of {len(items)}: " + ", ".join(describe(item) for item in items)
        return f"a list (each item {describe(items[0])})" if items else "a list"
    return f"a component (a node whose _target_ is a {getattr(plain, '__name__', plain)})"


def _bounds(annotation: Any) -> str:
    """Describe the range of a number in words that follow "it must be"."""
    lower = upper = ""
    annotated = next(member for member in _alternatives(annotation) if member is not type(None))
    for bound in (part for group in typing.get_args(annotated)[1:] for part in _parts(group)):
        match bound:
            case annotated_types.Ge(ge=least):
                lower = f"{least:,g} or more" if isinstance(least, float) else f"{least:,} or more"
            case annotated_types.Gt(gt=below):
                lower = f"greater than {below:,g}"
            case annotated_types.Le(le=most) if most != LARGEST_INTEGER:
                upper = f"{most:,} or less" if isinstance(most, int) else f"{most:,g} or less"
            case annotated_types.Lt(lt=above):
                upper = f"less than {above:,g}"
    return ", and ".join(filter(None, (lower, upper)))


def _parts(group: Any) -> Sequence[Any]:
    return list(group) if isinstance(group, annotated_types.GroupedMetadata) else [group]


def describe_value(value: Any) -> str:
    """Describe a value, briefly enough for a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping | list | tuple) and len(repr(value)) > _MAX_CHARACTERS:
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "a number that is too large to show"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key such as ``train.seed``; None if there is none."""
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key (``corpus.path[0]``) and value of every text, number, boolean and null in plain data."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, f"{key}[{place}]")
    else:
        yield key, value


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and value of every string in plain data; see ``leaves``."""
    return ((where, leaf) for where, leaf in leaves(value, key) if isinstance(leaf, str))
