"""A learner's carry (LSTM state, Transformer-XL memory): tuples, lists and dicts of tensors, to detach and to save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def map_tensors(carry: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with ``function`` of each tensor; anything that is no nest and no tensor stays."""
    if isinstance(carry, Tensor):
        return function(carry)
    if isinstance(carry, tuple | list):
        return type(carry)(map_tensors(item, function) for item in carry)
    if isinstance(carry, dict):
        return {key: map_tensors(item, function) for key, item in carry.items()}
    return carry


def detached(carry: Any) -> Any:
    """The same values without their history, so that no gradient flows into an earlier step."""
    return map_tensors(carry, Tensor.detach)


def flatten(carry: Any, prefix: str = "carry") -> tuple[dict[str, Tensor], Any]:
    """The tensors of a nest by name, and its structure as JSON-able values.

    Raises:
        TypeError: it holds something else than tensors, plain numbers, strings, None, tuples, lists and dicts.
    """
    if isinstance(carry, Tensor):
        return {prefix: carry}, {"tensor": prefix}
    if isinstance(carry, tuple | list | dict):
        items = carry.items() if isinstance(carry, dict) else enumerate(carry)
        tensors: dict[str, Tensor] = {}
        structure = []
        for key, item in items:
            below, shape = flatten(item, f"{prefix}.{key}")
            tensors.update(below)
            structure.append([key, shape])
        return tensors, {type(carry).__name__: structure}
    if carry is None or isinstance(carry, bool | int | float | str):
        return {}, {"value": carry}
    raise TypeError(f"a carry may hold tensors, numbers, strings, None, tuples, lists and dicts, not {type(carry)}")


def unflatten(tensors: Mapping[str, Tensor], structure: Mapping[str, Any]) -> Any:
    """The reverse of ``flatten``."""
    ((kind, value),) = structure.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {key: unflatten(tensors, shape) for key, shape in value}
    items = [unflatten(tensors, shape) for _, shape in value]
    return tuple(items) if kind == "tuple" else items
