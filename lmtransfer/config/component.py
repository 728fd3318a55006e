"""Component nodes (a ``_target_`` and its arguments) as plain data: finding them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeGuard

from lmtransfer.config.plain import join
from lmtransfer.config.signature import problems_of
from lmtransfer.config.target import resolve
from lmtransfer.config.values import BROKEN
from lmtransfer.errors import ConfigError
from lmtransfer.system.optional import missing


class _Placeholder:
    """Stands for a component that would be built there."""


_PLACEHOLDER = _Placeholder()


def is_component(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether plain data describes a component."""
    return isinstance(value, dict) and "_target_" in value


def outermost(value: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
    """The component nodes in ``value`` that lie in no other, with their full keys."""
    if is_component(value):
        return [(key, value)]
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in outermost(item, join(key, name))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in outermost(item, join(key, index))]
    return []


def component_problems(
    values: dict[str, Any], *, key: str, nodes: Mapping[str, Set[str]], complete: bool
) -> dict[str, str]:
    """The problems of one component and of those nested in it, by full key.

    Args:
        values: the node as plain data.
        key: its full key.
        nodes: names of the arguments that the command supplies, by the full key of the node that gets them.
        complete: whether a missing argument is a problem.
    """
    problems: dict[str, str] = {}
    runtime = nodes.get(key, set())
    given, with_components = {}, set()
    for name, value in values.items():
        if name == "_target_":
            continue
        nested = outermost(value, join(key, name))
        for where, component in nested:
            # A component that the command builds itself, and passes, gets arguments that are known only to it.
            passed = name in runtime and where not in nodes
            problems |= component_problems(component, key=where, nodes=nodes, complete=complete and not passed)
        if nested:
            with_components.add(name)
        given[name] = _with_placeholders(value)
    if values["_target_"] is BROKEN:
        return problems
    try:
        cls = resolve(values["_target_"], key=key)
    except ConfigError as error:
        where = join(key, "_target_")
        return {where: error.problems[0].removeprefix(f"{where}: ")} | problems
    for package in getattr(cls, "needs_packages", ()):
        unavailable = missing(package)
        if unavailable is not None:
            problems[key] = unavailable
    return problems | problems_of(cls, given, key=key, runtime=runtime, replaceable=with_components, complete=complete)


def _with_placeholders(value: Any) -> Any:
    if is_component(value):
        return _PLACEHOLDER
    if isinstance(value, dict):
        return {name: _with_placeholders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_placeholders(item) for item in value]
    return value
