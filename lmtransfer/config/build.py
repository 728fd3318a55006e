"""From a config node with ``_target_`` to an object."""

from __future__ import annotations

from typing import Any

from lmtransfer.config.component import component_problems, is_component
from lmtransfer.config.plain import full_key, join, to_plain
from lmtransfer.config.signature import arguments_of
from lmtransfer.config.target import resolve
from lmtransfer.config.values import convert
from lmtransfer.errors import ConfigError


def build(node: Any, **runtime: Any) -> Any:
    """Build the component that ``node`` describes; nested components are built first, without runtime arguments.

    Args:
        node: a mapping with ``_target_`` and the arguments of that class.
        runtime: arguments that only the command knows (a vocabulary size, a tokenizer). Those that the class does not
            take are dropped; one that replaces a nested component's node wins over it.

    Raises:
        ConfigError: the target is not allowed or not there; an argument is unknown, missing, of the wrong type, or
            given by both the config and the command. All problems at once.
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
