"""The map between published tensor names and ours: an ordered list of reversible rewrites, with checks.

Shape legend: D width, H heads, K head width; "theirs" are published tensors, "ours" are tensors of this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError, list_problems

#: Storage of a published tensor, in this order: the same as ours; a matrix as (in, out); (D, H, K) for our (H K, D);
#: (..., H, K) for our (..., H K); (1, 1, D) for our (D).
StorageLayout = Literal["same", "in_out", "in_heads", "heads_out", "one_row"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One of our tensors and the published tensor or tensors that it consists of.

    Attributes:
        theirs: published names; several published tensors are concatenated along the first dimension (fused
            projections).
    """

    ours: str  #: our name; ``{i}`` stands for a layer number
    theirs: tuple[str, ...]
    layout: StorageLayout = "same"

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Convert published tensors to ours."""
        values = [_ours_of(piece, self.layout) for piece in pieces]
        return values[0] if len(values) == 1 else torch.cat(values)

    def split(self, tensor: Tensor, *, num_heads: int | None = None) -> list[Tensor]:
        """Convert our tensor to published tensors."""
        return [_theirs_of(piece, self.layout, num_heads).contiguous() for piece in tensor.chunk(len(self.theirs))]


def _ours_of(theirs: Tensor, layout: StorageLayout) -> Tensor:
    match layout:
        case "in_out":
            return theirs.T.contiguous()
        case "in_heads":
            return theirs.flatten(1).T.contiguous()
        case "heads_out":
            return theirs.flatten(-2)
        case "one_row":
            return theirs.reshape(-1)
    return theirs


def _theirs_of(ours: Tensor, layout: StorageLayout, num_heads: int | None) -> Tensor:
    if layout in ("in_heads", "heads_out") and num_heads is None:
        raise ValueError(f"a tensor stored as {layout} needs the number of heads")
    match layout:
        case "in_out":
            return ours.T
        case "in_heads":
            return ours.T.unflatten(1, (num_heads or 1, -1))
        case "heads_out":
            return ours.unflatten(-1, (num_heads or 1, -1))
        case "one_row":
            return ours.view(1, 1, -1)
    return ours


def linear(ours: str, *theirs: str) -> list[Rewrite]:
    """Return the rewrites of a module with a weight and a bias (a linear layer or a LayerNorm)."""
    return [Rewrite(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs)) for part in ("weight", "bias")]


def _matches(template: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Find the names that match a template, each with its layer number (empty if the template has no ``{i}``)."""
    pattern = re.compile(re.escape(template).replace(r"\{i\}", r"(?P<layer>\d+)"))
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    return [(match.string, match.groupdict().get("layer", "")) for match in matches]


def rewrite_of(ours: str, key_map: Sequence[Rewrite]) -> Rewrite | None:
    """Find the rewrite of one of our tensors, and fill in the layer number; None if there is no rewrite."""
    for rewrite in key_map:
        for name, layer in _matches(rewrite.ours, [ours]):
            return replace(rewrite, ours=name, theirs=tuple(part.replace("{i}", layer) for part in rewrite.theirs))
    return None


def to_ours(tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite]) -> dict[str, Tensor]:
    """Rename and fuse published tensors."""
    rest = dict(tensors)
    ours: dict[str, Tensor] = {}
    for rewrite in key_map:
        for name, layer in _matches(rewrite.theirs[0], rest):
            parts = [part.replace("{i}", layer) for part in rewrite.theirs]
            missing = [part for part in parts if part not in rest]
            if missing:
                raise CheckpointError(f"the checkpoint has {name} but not {', '.join(missing)}")
            ours[rewrite.ours.replace("{i}", layer)] = rewrite.join([rest.pop(part) for part in parts])
    if rest:
        raise CheckpointError(f"the checkpoint has tensors that its family does not have: {', '.join(sorted(rest))}")
    return ours


def to_theirs(
    tensors: Mapping[str, Tensor], key_map: Sequence[Rewrite], *, num_heads: int | None = None
) -> dict[str, Tensor]:
    """Rename and split our tensors; the inverse of ``to_ours``."""
    rest = dict(tensors)
    theirs: dict[str, Tensor] = {}
    for rewrite in key_map:
        for name, layer in _matches(rewrite.ours, rest):
            pieces = rewrite.split(rest.pop(name), num_heads=num_heads)
            for part, piece in zip(rewrite.theirs, pieces, strict=True):
                theirs[part.replace("{i}", layer)] = piece
    if rest:
        raise CheckpointError(f"these tensors have no published counterpart: {', '.join(sorted(rest))}")
    return theirs


def expected_tensors(
    module: nn.Module,
    key_map: Sequence[Rewrite],
    *,
    num_heads: int | None,
    prefix: str = "",
    without: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Return the tensors that a published file must hold for one of our modules, by published names.

    Only the shapes of the returned tensors are meaningful.

    Args:
        module: the module, which may be on the meta device; a shared tensor counts once, under its first name.
        without: prefixes (after ``prefix``) of tensors to leave out, because they are published elsewhere.
    """
    ids: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in ids and not name.startswith(tuple(without)):
            tensors[f"{prefix}{name}"] = tensor.detach()
        ids.add(id(tensor))
    return to_theirs(tensors, key_map, num_heads=num_heads)


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, source: str) -> None:
    """Check the names, shapes and dtypes of tensors against the expected tensors."""
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is not expected" for name in tensors if name not in expected]
    for name, tensor in tensors.items():
        if name not in expected:
            continue
        if tensor.shape != expected[name].shape:
            shape, wanted = list(tensor.shape), list(expected[name].shape)
            problems.append(f"{name} has shape {shape}, but the settings require {wanted}")
        elif not tensor.is_floating_point():
            problems.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not floating-point numbers")
    if problems:
        raise CheckpointError(list_problems(f"{source}: its tensors do not fit its settings:", problems))
