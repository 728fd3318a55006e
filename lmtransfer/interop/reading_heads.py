"""Read the pretraining heads of a published checkpoint as heads of our objectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmtransfer.interop.families.base import Family, PretrainingHead, target_of
from lmtransfer.interop.families.key_map import check_tensors, expected_tensors, to_ours
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective

#: At most this many of the left-out tensors are named in a note.
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class HeadsRead:
    """The heads that were read.

    Attributes:
        tensors: tensors by our names, under ``objectives.``.
        nodes: component nodes of the objectives that are complete.
    """

    tensors: dict[str, Tensor]
    nodes: dict[str, dict[str, Any]]


def read_heads(
    family: Family,
    config: Mapping[str, Any],
    *,
    encoder: Encoder,
    body: Mapping[str, Tensor],
    heads: Mapping[str, Tensor],
    source: str,
    notes: list[str],
) -> HeadsRead:
    """Read the heads that belong to an objective; other tensors are left out, with a note.

    Args:
        family: the family with its tables.
        config: config.json, as the family's table reads it.
        encoder: our encoder, without memory for its weights.
        body: published tensors of the encoder.
        heads: all other published tensors.
        source: the folder, for messages.
        notes: list to which notes for the user are added.

    Raises:
        CheckpointError: the shapes of a head's tensors do not fit the encoder.
    """
    left, read = dict(heads), HeadsRead({}, {})
    declared = config.get("architectures")
    declared = declared if isinstance(declared, list) else []
    for head in family.heads:
        names = [name for rewrite in head.key_map for name in rewrite.theirs]
        own = {name: left.pop(name) for name in names if name in left}
        repeats = {name: left.pop(name) for name in head.repeats if name in left}
        if not own and not repeats and not any(name in head.declared_by for name in declared):
            continue
        problem = _why_not(head, own, repeats, body, encoder)
        if problem is not None:
            notes.append(f"the head of {head.loss} is left out: {problem}")
            continue
        try:
            given = {setting.ours: setting.value_in(config) for setting in head.settings} | dict(head.implied)
        except ValueError as error:
            notes.append(f"the head of {head.loss} is left out: config.json: {error}")
            continue
        objective = _skeleton(head, given, encoder)
        generator = family.generator if family.generator is not None and family.generator.loss == head.loss else None
        without = () if generator is None else generator.own_prefixes
        shapes = expected_tensors(objective, head.key_map, num_heads=None, prefix=f"{head.loss}.", without=without)
        check_tensors(own, shapes, source=source)
        read.tensors.update(to_ours(own, head.key_map))
        if generator is None:
            read.nodes[head.loss] = {"_target_": target_of(head.objective), **given}
    if left:
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        notes.append(
            "left out, because no objective of lmtransfer has such a head: "
            f"{', '.join(sorted(left)[:_MOST_NAMED])}{more}"
        )
    return read


def _why_not(
    head: PretrainingHead,
    own: Mapping[str, Tensor],
    repeats: Mapping[str, Tensor],
    body: Mapping[str, Tensor],
    encoder: Encoder,
) -> str | None:
    """Return the reason why a head in the checkpoint cannot be used; None if it can."""
    missing = [name for rewrite in head.key_map for name in rewrite.theirs if name not in own]
    if missing:
        return f"missing tensors: {', '.join(missing)}"
    if head.objective.uses_pooler and encoder.pooler is None:
        return "it needs a pooler, and the checkpoint has none"
    for name, tensor in repeats.items():
        original = {**body, **own}[head.repeats[name]]
        same = original.shape == tensor.shape and original.dtype == tensor.dtype
        if not same or not torch.equal(original, tensor):
            return f"{name} differs from {head.repeats[name]}, but lmtransfer uses one tensor for both"
    return None


def _skeleton(head: PretrainingHead, arguments: Mapping[str, Any], encoder: Encoder) -> Objective:
    """Build the head's objective on the encoder, without memory for its weights."""
    with torch.device("meta"):
        objective = head.objective(**arguments)
        objective.bind(encoder)
    return objective
