"""Converts config nodes to plain data, and finds every missing value and broken interpolation."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lmtransfer.system.validation import join

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def literal(value: Any) -> Any:
    """Escape ``${`` in every text of plain data, so that a config holds the text itself, not an interpolation.

    Everything that comes from data or from a saved run (labels, file names, another run's config) must be escaped
    before it enters a config: ``${oc.env:TOKEN}`` in a file would otherwise read a value of this machine. Reading the
    config, also with ``to_plain``, returns the text unchanged.
    """
    if isinstance(value, str):
        return _INTERPOLATION.sub(r"\1\1\\${", value)
    if isinstance(value, dict):
        return {name: literal(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value


class _Broken:
    """Stands for a value that is missing or cannot be resolved, which is reported separately."""

    def __repr__(self) -> str:
        return "..."


BROKEN = _Broken()


def is_broken(value: Any) -> bool:
    """Whether plain data is ``BROKEN`` or contains it."""
    if isinstance(value, dict | list):
        return any(is_broken(item) for item in (value.values() if isinstance(value, dict) else value))
    return value is BROKEN


def to_plain(node: Any, key: str) -> tuple[Any, dict[str, str]]:
    """Convert a node to dicts, lists and scalars.

    Returns:
        The data, with ``BROKEN`` in place of each value that has a problem, and the problems, keyed by full key.
    """
    problems: dict[str, str] = {}

    def plain(container: Any, name: Any, key: str) -> Any:
        try:
            value = container[name]
        except MissingMandatoryValue:
            problems[key] = f"missing: set {key}=<value>"
            return BROKEN
        except OmegaConfBaseException as error:
            problems[key] = f"cannot be resolved: {str(error).splitlines()[0]}"
            return BROKEN
        return walk(value, key)

    def walk(value: Any, key: str) -> Any:
        if isinstance(value, DictConfig):
            if value._is_none():
                return None
            return {name: plain(value, name, join(key, name)) for name in value}
        if isinstance(value, ListConfig):
            if value._is_none():
                return None
            return [plain(value, index, join(key, index)) for index in range(len(value))]
        if isinstance(value, dict):  # it may contain nodes
            return {name: walk(item, join(key, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [walk(item, join(key, index)) for index, item in enumerate(value)]
        return value

    return walk(node, key), problems
