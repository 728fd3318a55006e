"""The arguments of a component's class, with their types, and what is wrong with those that a config gives."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from lmtransfer.config.nearest import hint
from lmtransfer.config.plain import join
from lmtransfer.config.ranges import out_of_range
from lmtransfer.config.values import Misfit, convert

#: Hydra's own words in a component node; only ``_target_`` means something here.
RESERVED = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a class.

    Attributes:
        annotation: evaluated; Any where there is none or it cannot be evaluated.
        required: whether it has no default.
    """

    annotation: Any
    required: bool


def arguments_of(cls: type) -> dict[str, Argument]:
    """The arguments that ``cls(...)`` takes by name, in order."""
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    namespace = getattr(inspect.getattr_static(cls, "__init__"), "__globals__", vars(sys.modules[cls.__module__]))
    return {p.name: Argument(_evaluate(p.annotation, namespace), p.default is p.empty) for p in named}


def problems_of(
    cls: type, values: Mapping[str, Any], *, key: str, runtime: Set[str], replaceable: Set[str], complete: bool
) -> dict[str, str]:
    """What is wrong with the arguments that a config gives to ``cls``, by full key.

    Args:
        cls: the class.
        values: plain data without ``_target_``; built components are objects of any kind.
        key: full key of the component's node.
        runtime: the arguments that the command supplies.
        replaceable: the keys of ``values`` that the command may replace (components that it builds itself).
        complete: whether a missing argument is a problem.
    """
    arguments = arguments_of(cls)
    problems = {}
    for name, value in values.items():
        where = join(key, name)
        if name in RESERVED:
            problems[where] = "is not supported; a component is its _target_ and the arguments of that class"
        elif name not in arguments:
            own = [argument for argument in arguments if argument not in runtime]
            problems[where] = f"{cls.__name__} takes no such argument; {hint(name, own, what='it takes')}"
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
        # The text is an annotation in the source of an allowed class, not anything from a config.
        hints = typing.get_type_hints(type("Hint", (), {"__annotations__": {"value": annotation}}), namespace)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any
    return hints["value"]
