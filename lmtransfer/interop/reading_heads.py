"""The pretraining heads of a published checkpoint, as those of our objectives."""

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

#: Tensors that are named of those that are left out.
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class HeadsRead:
    """What came along.

    Attributes:
        tensors: by our names, under ``objectives.``.
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
    """Take what belongs to an objective; what else stands beside the encoder is told and left out.

    Args:
        family: its tables.
        config: config.json, as its table reads it.
        encoder: our encoder, without memory for its weights.
        body: the encoder's published tensors.
        heads: the other ones.
        source: the folder, for messages.
        notes: for the user; added to.

    Raises:
        CheckpointError: a head's tensors are of other shapes than the encoder asks for.
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
        notes.append(f"left out, as no objective here has such a head: {', '.join(sorted(left)[:_MOST_NAMED])}{more}")
    return read


def _why_not(
    head: PretrainingHead,
    own: Mapping[str, Tensor],
    repeats: Mapping[str, Tensor],
    body: Mapping[str, Tensor],
    encoder: Encoder,
) -> str | None:
    """Why a head that is there cannot come along."""
    missing = [name for rewrite in head.key_map for name in rewrite.theirs if name not in own]
    if missing:
        return f"{', '.join(missing)} missing"
    if head.objective.uses_pooler and encoder.pooler is None:
        return "it reads a pooler, and the checkpoint has none"
    for name, tensor in repeats.items():
        original = {**body, **own}[head.repeats[name]]
        same = original.shape == tensor.shape and original.dtype == tensor.dtype
        if not same or not torch.equal(original, tensor):
            return f"{name} is not {head.repeats[name]}: lmtransfer ties the two"
    return None


def _skeleton(head: PretrainingHead, arguments: Mapping[str, Any], encoder: Encoder) -> Objective:
    """The head's objective over the encoder, without memory for its weights."""
    with torch.device("meta"):
        objective = head.objective(**arguments)
        objective.bind(encoder)
    return objective
