"""A learner's recurrent state (LSTM states, Transformer-XL memory): nested tensors to detach and to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lmtransfer.errors import TrainingError


def choose(old: Tensor, before: Any, after: Any) -> Any:
    """Return ``before`` where ``old`` is true and ``after`` where it is false, decided on the device.

    Args:
        before: the recurrent state before the step; where it has no tensor of that shape, zeros take its place.
    """
    if isinstance(after, Tensor):
        fits = isinstance(before, Tensor) and before.shape == after.shape
        return torch.where(old, before if fits else torch.zeros_like(after), after)
    if isinstance(after, tuple | list):
        old_parts = before if isinstance(before, tuple | list) and len(before) == len(after) else [None] * len(after)
        return type(after)(choose(old, *parts) for parts in zip(old_parts, after, strict=True))
    if isinstance(after, dict):
        return {key: choose(old, (before or {}).get(key), item) for key, item in after.items()}
    return after


def redistribute(recurrent_states: Mapping[int, Any], sizes: Sequence[int]) -> dict[int, Any]:
    """Redistribute the recurrent states of a step's micro-batches over another split of the same rows.

    The first dimension of each tensor indexes sequences.
    """
    places = sorted(recurrent_states)
    rows = [_num_rows(recurrent_states[place]) for place in places]
    if not places or rows == [None] * len(rows) or rows == list(sizes):
        return dict(recurrent_states)
    if None in rows or sum(n for n in rows if n is not None) != sum(sizes):
        raise TrainingError(
            f"the recurrent state belongs to micro-batches of {rows} sequences, but they now have {list(sizes)}: "
            "continue with the train.micro_batch_tokens and the number of processes with which the run started"
        )
    names: dict[str, list[Tensor]] = {}
    structure = None
    for place in places:
        tensors, structure = flatten(recurrent_states[place])
        for name, tensor in tensors.items():
            names.setdefault(name, []).append(tensor)
    parts = {name: torch.cat(tensors).split(list(sizes)) for name, tensors in names.items()}
    assert structure is not None
    return {
        place: unflatten({name: pieces[place] for name, pieces in parts.items()}, structure)
        for place in range(len(sizes))
    }


def _num_rows(recurrent_state: Any) -> int | None:
    tensors, _ = flatten(recurrent_state)
    return next((len(tensor) for tensor in tensors.values() if tensor.ndim), None)


def detach(recurrent_state: Any) -> Any:
    """Return the state with its tensors detached, so that no gradient flows into an earlier step."""
    return tree_map_only(Tensor, Tensor.detach, recurrent_state)


def flatten(recurrent_state: Any, prefix: str = "carry") -> tuple[dict[str, Tensor], Any]:
    """Return a nested structure's tensors, keyed by name, and the structure as values that JSON can represent."""
    if isinstance(recurrent_state, Tensor):
        return {prefix: recurrent_state}, {"tensor": prefix}
    if isinstance(recurrent_state, tuple | list | dict):
        items = recurrent_state.items() if isinstance(recurrent_state, dict) else enumerate(recurrent_state)
        tensors: dict[str, Tensor] = {}
        structure = []
        for key, item in items:
            below, shape = flatten(item, f"{prefix}.{key}")
            tensors.update(below)
            structure.append([key, shape])
        return tensors, {type(recurrent_state).__name__: structure}
    if recurrent_state is None or isinstance(recurrent_state, bool | int | float | str):
        return {}, {"value": recurrent_state}
    raise TypeError(
        "a recurrent state may hold tensors, numbers, strings, None, tuples, lists and dicts, not "
        f"{type(recurrent_state)}"
    )


def unflatten(tensors: Mapping[str, Tensor], structure: Mapping[str, Any]) -> Any:
    """Rebuild the nested structure from the results of ``flatten``."""
    ((kind, value),) = structure.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {key: unflatten(tensors, shape) for key, shape in value}
    items = [unflatten(tensors, shape) for _, shape in value]
    return tuple(items) if kind == "tuple" else items
