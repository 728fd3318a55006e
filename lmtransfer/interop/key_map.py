"""Published tensor names to ours and back: an ordered list of reversible rewrites, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmtransfer.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One of our tensors and the published tensor or tensors it is made of.

    Attributes:
        ours: our name; ``{i}`` stands for a layer number.
        theirs: published names; several are stacked along the first dimension into ours (fused projections).
    """

    ours: str
    theirs: tuple[str, ...]


def linear(ours: str, *theirs: str) -> list[Rewrite]:
    """Rewrites of a module with a weight and a bias (a linear layer or a LayerNorm)."""
    return [Rewrite(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs)) for part in ("weight", "bias")]


def to_ours(tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite], *, ignore: Sequence[str] = ()) -> dict[str, Tensor]:
    """Rename and fuse published tensors.

    Args:
        tensors: published tensors by name.
        key_map: the family's rewrites.
        ignore: regular expressions of published names that hold nothing of ours (position counters).

    Raises:
        CheckpointError: a published tensor that no rewrite knows, or part of a fused one that is missing.
    """
    left = {name: tensor for name, tensor in tensors.items() if not any(re.fullmatch(p, name) for p in ignore)}
    ours: dict[str, Tensor] = {}
    for rewrite in key_map:
        pattern = re.compile(re.escape(rewrite.theirs[0]).replace(r"\{i\}", r"(\d+)"))
        for name in [name for name in left if pattern.fullmatch(name)]:
            match = pattern.fullmatch(name)
            layer = match.group(1) if match and match.groups() else ""
            parts = [part.replace("{i}", layer) for part in rewrite.theirs]
            missing = [part for part in parts if part not in left]
            if missing:
                raise CheckpointError(f"the checkpoint has {name} but not {', '.join(missing)}")
            pieces = [left.pop(part) for part in parts]
            ours[rewrite.ours.replace("{i}", layer)] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    if left:
        raise CheckpointError(f"the checkpoint has tensors that this family does not know: {', '.join(sorted(left))}")
    return ours


def to_theirs(tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite]) -> dict[str, Tensor]:
    """Rename and split our tensors; the inverse of ``to_ours``.

    Raises:
        CheckpointError: one of our tensors that no rewrite knows.
    """
    left = dict(tensors)
    theirs: dict[str, Tensor] = {}
    for rewrite in key_map:
        pattern = re.compile(re.escape(rewrite.ours).replace(r"\{i\}", r"(\d+)"))
        for name in [name for name in left if pattern.fullmatch(name)]:
            match = pattern.fullmatch(name)
            layer = match.group(1) if match and match.groups() else ""
            pieces = left.pop(name).chunk(len(rewrite.theirs))
            for part, piece in zip(rewrite.theirs, pieces, strict=True):
                theirs[part.replace("{i}", layer)] = piece.contiguous()
    if left:
        raise CheckpointError(f"tensors without a published counterpart: {', '.join(sorted(left))}")
    return theirs
