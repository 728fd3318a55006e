"""The tensors of models of transformers as ours, by the tables of a family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from lmtransfer.interop.families import family
from lmtransfer.interop.families.family import Family, Rewrite


def to_ours(
    tensors: Mapping[str, Tensor], rewrites: Sequence[Rewrite], *, ignore: Sequence[str] = ()
) -> dict[str, Tensor]:
    """``key_map.to_ours`` without the tensors whose names match: those that a file repeats, or that are no weights."""
    kept = {name: tensor for name, tensor in tensors.items() if not any(re.fullmatch(p, name) for p in ignore)}
    return family.to_ours(kept, rewrites)


def heads_to_ours(tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The tensors of its pretraining heads, but for those that repeat others."""
    rewrites = [rewrite for head in family.heads for rewrite in head.key_map]
    return to_ours(tensors, rewrites, ignore=[re.escape(name) for head in family.heads for name in head.repeats])


def learner_tensors(tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """All tensors of a peer with pretraining heads, by the names of our learner."""
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(family.prefix)}
    body = {name.removeprefix(family.prefix): tensor for name, tensor in own.items()}
    heads = {name: tensor for name, tensor in tensors.items() if name not in own}
    ours = {f"encoder.{n}": t for n, t in to_ours(body, family.key_map, ignore=family.ignored_patterns).items()}
    return ours | {f"objectives.{name}": tensor for name, tensor in heads_to_ours(heads, family).items()}
