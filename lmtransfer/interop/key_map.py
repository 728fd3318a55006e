"""Published tensor names to ours and back: an ordered list of reversible rewrites, as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
        transposed: the published matrix is (in, out) where ours is (out, in), as GPT-2's are.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Published tensors as ours."""
        whole = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
        return whole.T.contiguous() if self.transposed else whole

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Ours as published tensors."""
        whole = tensor.T if self.transposed else tensor
        return [piece.contiguous() for piece in whole.chunk(len(self.theirs))]


def linear(ours: str, *theirs: str) -> list[Rewrite]:
    """Rewrites of a module with a weight and a bias (a linear layer or a LayerNorm)."""
    return [Rewrite(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs)) for part in ("weight", "bias")]


def _matches(template: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """The names that fit, each with the layer number that its ``{i}`` stands for ("" where it has none)."""
    pattern = re.compile(re.escape(template).replace(r"\{i\}", r"(?P<layer>\d+)"))
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    return [(match.string, match.groupdict().get("layer", "")) for match in matches]


def to_ours(
    tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite], *, ignore: Sequence[str] = ()
) -> dict[str, Tensor]:
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
        for name, layer in _matches(rewrite.theirs[0], left):
            parts = [part.replace("{i}", layer) for part in rewrite.theirs]
            missing = [part for part in parts if part not in left]
            if missing:
                raise CheckpointError(f"the checkpoint has {name} but not {', '.join(missing)}")
            ours[rewrite.ours.replace("{i}", layer)] = rewrite.join([left.pop(part) for part in parts])
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
        for name, layer in _matches(rewrite.ours, left):
            for part, piece in zip(rewrite.theirs, rewrite.split(left.pop(name)), strict=True):
                theirs[part.replace("{i}", layer)] = piece
    if left:
        raise CheckpointError(f"tensors without a published counterpart: {', '.join(sorted(left))}")
    return theirs
