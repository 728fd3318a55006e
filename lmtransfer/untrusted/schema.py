"""Schemas of documents: small classes that check a value and name the field that is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

LARGEST_WHOLE = 2**63 - 1
_SHOWN = 40


class Kind(Protocol):
    """The schema of a value."""

    def problem(self, value: Any, where: str) -> str | None:
        """The problem of a value, in words that follow the file name; None if the value is valid.

        Args:
            value: plain data.
            where: its field, such as ``files.model.bytes``; empty for the whole document.
        """
        ...


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value of plain data."""

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        return None


@dataclass(frozen=True, slots=True)
class Text:
    """A string; one of ``among`` if given."""

    among: tuple[str, ...] = ()

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        if isinstance(value, str) and (not self.among or value in self.among):
            return None
        return misfit(value, where, f"one of {', '.join(self.among)}" if self.among else "text")


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean."""

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        return None if isinstance(value, bool) else misfit(value, where, "true or false")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``least`` to ``most``."""

    least: int = 0
    most: int = LARGEST_WHOLE

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return None
        above = "" if self.most == LARGEST_WHOLE else f" to {self.most:,}"
        return misfit(value, where, f"a whole number from {self.least:,}{above}")


@dataclass(frozen=True, slots=True)
class Real:
    """A number of at least ``least``; finite, unless ``finite`` is false."""

    least: float = -math.inf
    finite: bool = True

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and (math.isfinite(value) if self.finite else True) and not value < self.least:
            return None
        least = "" if math.isinf(self.least) else f" of at least {self.least:g}"
        return misfit(value, where, f"a {'finite ' if self.finite else ''}number{least}")


@dataclass(frozen=True, slots=True)
class OrNull:
    """A value of the given kind, or null."""

    kind: Kind

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        return None if value is None else self.kind.problem(value, where)


@dataclass(frozen=True, slots=True)
class Items:
    """A list of values of one kind."""

    kind: Kind

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        if not isinstance(value, list):
            return misfit(value, where, "a list")
        found = (self.kind.problem(item, f"{where}[{place}]") for place, item in enumerate(value))
        return next(filter(None, found), None)


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping with arbitrary names and at least ``least`` values of one kind."""

    kind: Kind
    least: int = 0

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        if not isinstance(value, dict) or len(value) < self.least:
            return misfit(value, where, "a mapping" if not self.least else f"a mapping with at least {self.least} key")
        found = (self.kind.problem(item, join(where, name)) for name, item in value.items())
        return next(filter(None, found), None)


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping whose fields each have a kind; further fields are ignored."""

    required: Mapping[str, Kind] = field(default_factory=dict)
    optional: Mapping[str, Kind] = field(default_factory=dict)

    def problem(self, value: Any, where: str) -> str | None:
        """See ``Kind``."""
        if not isinstance(value, dict):
            return misfit(value, where, "a mapping")
        for name, kind in (*self.required.items(), *self.optional.items()):
            if name in value:
                problem = kind.problem(value[name], join(where, name))
                if problem is not None:
                    return problem
            elif name in self.required:
                return f"{join(where, name)} is missing"
        return None


#: A component node: a class and its arguments.
COMPONENT = Fields({"_target_": Text()})


def join(where: str, name: object) -> str:
    """The field ``name`` of the value at ``where``."""
    shown = str(name)[:_SHOWN]
    return f"{where}.{shown}" if where else shown


def misfit(value: Any, where: str, wanted: str) -> str:
    """The message for a wrong value, such as ``step is 'x'; it must be a whole number from 0``.

    A document that is one text is probably another file, whose content is not shown.
    """
    if not where and isinstance(value, str):
        return f"its content is text; it must be {wanted}"
    return f"{where or 'its content'} is {shown(value)}; it must be {wanted}"


def shown(value: Any) -> str:
    """A short text for a value of plain data."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        what = "mapping" if isinstance(value, dict) else "list"
        return f"a {what} of {len(value)}" if value else f"an empty {what}"
    try:
        text = repr(value)
    except ValueError:  # a whole number with thousands of digits
        return "a number that is too large to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
