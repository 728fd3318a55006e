"""A learner's carry (LSTM state, Transformer-XL memory): tuples, lists and dicts of tensors, to detach and to save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lmtransfer.errors import TrainingError


def map_tensors(carry: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with ``function`` of each tensor; anything that is no nest and no tensor stays."""
    if isinstance(carry, Tensor):
        return function(carry)
    if isinstance(carry, tuple | list):
        return type(carry)(map_tensors(item, function) for item in carry)
    if isinstance(carry, dict):
        return {key: map_tensors(item, function) for key, item in carry.items()}
    return carry


def recut(carries: Mapping[int, Any], sizes: Sequence[int]) -> dict[int, Any]:
    """The carries of a step's micro-batches, for another cut of the same rows into micro-batches.

    Each tensor has a row a sequence, first dimension first.

    Args:
        carries: by place in the step; those of places that the step does not have are of no use any more.
        sizes: sequences of each micro-batch of the step to come.

    Raises:
        TrainingError: they are carries of another number of rows.
    """
    places = sorted(carries)
    rows = [_num_rows(carries[place]) for place in places]
    if not places or rows == [None] * len(rows) or rows == list(sizes):
        return dict(carries)
    if None in rows or sum(n for n in rows if n is not None) != sum(sizes):
        raise TrainingError(
            f"the state that is carried on belongs to micro-batches of {rows} sequences, and these have {list(sizes)}: "
            f"go on with the train.micro_batch_tokens and the number of processes that the run was started with"
        )
    names: dict[str, list[Tensor]] = {}
    structure = None
    for place in places:
        tensors, structure = flatten(carries[place])
        for name, tensor in tensors.items():
            names.setdefault(name, []).append(tensor)
    parts = {name: torch.cat(tensors).split(list(sizes)) for name, tensors in names.items()}
    assert structure is not None
    return {
        place: unflatten({name: pieces[place] for name, pieces in parts.items()}, structure)
        for place in range(len(sizes))
    }


def _num_rows(carry: Any) -> int | None:
    """Rows of the tensors of a nest; None where it has none."""
    tensors, _ = flatten(carry)
    return next((len(tensor) for tensor in tensors.values() if tensor.ndim), None)


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
