"""Building objects from config nodes with ``_target_``, and checking their arguments.

A component is a node with ``_target_`` and the arguments of that class. All problems of a component and of the
components nested in it are found from signatures, before anything is built. The class of a nested component must be one
that the annotation of its argument asks for.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeGuard

from lmtransfer.config.nearest import hint
from lmtransfer.config.plain import full_key, join, to_plain
from lmtransfer.config.ranges import out_of_range
from lmtransfer.config.target import all_bases, bases_at, resolve
from lmtransfer.config.values import BROKEN, Misfit, Unbuilt, convert
from lmtransfer.errors import ConfigError
from lmtransfer.system.optional import missing

#: Keys of Hydra in a component node; only ``_target_`` is supported here.
RESERVED = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")


def build(node: Any, **runtime: Any) -> Any:
    """Build the component that ``node`` describes; nested components are built first, without runtime arguments.

    Args:
        node: a mapping with ``_target_`` and the arguments of that class.
        runtime: arguments that only the command knows (a vocabulary size, a tokenizer). Those that the class does not
            take are dropped. One that has the same name as a nested component replaces it.

    Raises:
        ConfigError: the target is not allowed or does not exist; an argument is unknown, missing, of the wrong type, or
            given by both the config and the command. Lists all problems.
    """
    key = full_key(node)
    values, problems = to_plain(node, key)
    if not is_component(values):
        raise ConfigError(f"{key or 'node'}: needs a component (a node with _target_), got {values!r}")
    problems |= component_problems(values, key=key, nodes={key: set(runtime)}, complete=True)
    if problems:
        raise ConfigError([f"{where}: {problem}" for where, problem in problems.items()])
    return _construct(values, key, runtime)


def _construct(values: dict[str, Any], key: str, runtime: dict[str, Any]) -> Any:
    cls = resolve(values["_target_"], key=key)
    arguments = arguments_of(cls)
    given = {name: value for name, value in runtime.items() if name in arguments}
    for name, value in values.items():
        if name != "_target_" and name not in given:
            given[name] = convert(_constructed(value, join(key, name)), arguments[name].annotation)
    return cls(**given)


def _constructed(value: Any, key: str) -> Any:
    if is_component(value):
        return _construct(value, key, {})
    if isinstance(value, dict):
        return {name: _constructed(item, join(key, name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_constructed(item, join(key, index)) for index, item in enumerate(value)]
    return value


def is_component(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether plain data describes a component."""
    return isinstance(value, dict) and "_target_" in value


def outermost(value: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
    """The component nodes in ``value`` that are not inside another component, with their full keys."""
    if is_component(value):
        return [(key, value)]
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in outermost(item, join(key, name))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in outermost(item, join(key, index))]
    return []


def component_problems(
    values: dict[str, Any],
    *,
    key: str,
    nodes: Mapping[str, Set[str]],
    complete: bool,
    bases: Sequence[str] | None = None,
) -> dict[str, str]:
    """The problems of a component and of those nested in it, by full key; nothing is constructed.

    Args:
        values: the node as plain data.
        key: its full key.
        nodes: names of the arguments that the command supplies, by the full key of the node that gets them.
        complete: whether a missing argument is a problem.
        bases: the bases that its class may have; None: those that belong to its key.
    """
    if values["_target_"] is BROKEN:
        return {}
    try:
        cls = resolve(values["_target_"], key=key, bases=bases or bases_at(key))
    except ConfigError as error:  # without the class it is unknown what the arguments may be
        where = join(key, "_target_")
        return {where: error.problems[0].removeprefix(f"{where}: ")}
    runtime = nodes.get(key, set())
    nested = {name: outermost(value, join(key, name)) for name, value in values.items() if name != "_target_"}
    given = {name: _unbuilt(values[name]) for name in nested}
    with_components = {name for name in nested if nested[name]}
    problems = problems_of(cls, given, key=key, runtime=runtime, replaceable=with_components, complete=complete)
    for name in with_components:
        if join(key, name) in problems:
            continue  # no component belongs here
        for where, component in nested[name]:
            # The command builds this component itself and knows arguments that are not in the config.
            passed = name in runtime and where not in nodes
            expected = bases_at(where) if name in runtime else all_bases()  # else the annotation has decided
            problems |= component_problems(
                component, key=where, nodes=nodes, complete=complete and not passed, bases=expected
            )
    for package in getattr(cls, "needs_packages", ()):
        unavailable = missing(package)
        if unavailable is not None:
            problems[key] = unavailable
    return problems


def _unbuilt(value: Any) -> Any:
    """A value with ``Unbuilt`` in the place of each component; ``BROKEN`` if its class has a problem of its own."""
    if is_component(value):
        try:
            return Unbuilt(resolve(value["_target_"]))
        except ConfigError:
            return BROKEN
    if isinstance(value, dict):
        return {name: _unbuilt(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_unbuilt(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a class.

    Attributes:
        annotation: the evaluated annotation; Any if there is none or if it cannot be evaluated.
        required: whether it has no default.
    """

    annotation: Any
    required: bool


@functools.cache
def arguments_of(cls: type) -> Mapping[str, Argument]:
    """The arguments that ``cls(...)`` accepts by name, in order."""
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    namespace = getattr(inspect.getattr_static(cls, "__init__"), "__globals__", vars(sys.modules[cls.__module__]))
    return {p.name: Argument(_evaluate(p.annotation, namespace), p.default is p.empty) for p in named}


def problems_of(
    cls: type, values: Mapping[str, Any], *, key: str, runtime: Set[str], replaceable: Set[str], complete: bool
) -> dict[str, str]:
    """The problems of the arguments that a config gives to ``cls``, by full key.

    Args:
        cls: the class.
        values: plain data without ``_target_``; ``Unbuilt`` in the place of components.
        key: full key of the component's node.
        runtime: names of the arguments that the command supplies.
        replaceable: the keys of ``values`` that the command may replace (components that it builds itself).
        complete: whether a missing argument is a problem.
    """
    arguments = arguments_of(cls)
    problems: dict[str, str] = {}
    for name, value in values.items():
        where = join(key, name)
        if name in RESERVED:
            problems[where] = "is not supported; a component has only _target_ and the arguments of that class"
        elif name not in arguments:
            own = [argument for argument in arguments if argument not in runtime]
            problems[where] = f"{cls.__name__} has no such argument; {hint(name, own, what='arguments')}"
        elif name in runtime and value is not None and name not in replaceable:
            problems[where] = "is supplied by the command; leave it out"
        elif name not in runtime:
            try:
                converted = convert(value, arguments[name].annotation)
            except Misfit as misfit:
                problems[where] = str(misfit)
                continue
            wrong = out_of_range(name, converted)
            if wrong:
                problems[where] = wrong
    if complete:
        for name, argument in arguments.items():
            if argument.required and name not in values and name not in runtime:
                problems[join(key, name)] = f"missing: {cls.__name__} needs it"
    return problems


def _evaluate(annotation: Any, namespace: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        # The text is an annotation from the source of an allowed class, never from a config.
        hints = typing.get_type_hints(type("Hint", (), {"__annotations__": {"value": annotation}}), namespace)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any
    return hints["value"]
