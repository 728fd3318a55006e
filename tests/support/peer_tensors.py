"""The tensors of models of transformers as ours, by the tables of a family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from lmtransfer.interop.families import key_map
from lmtransfer.interop.families.family import Family
from lmtransfer.interop.families.key_map import Rewrite


def to_ours(
    tensors: Mapping[str, Tensor], rewrites: Sequence[Rewrite], *, ignore: Sequence[str] = ()
) -> dict[str, Tensor]:
    """``key_map.to_ours`` without the tensors whose names match: those that a file repeats, or that are no weights."""
    kept = {name: tensor for name, tensor in tensors.items() if not any(re.fullmatch(p, name) for p in ignore)}
    return key_map.to_ours(kept, rewrites)


def heads_to_ours(tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The tensors of its pretraining heads, but for those that repeat others."""
    rewrites = [rewrite for head in family.heads for rewrite in head.key_map]
    return to_ours(tensors, rewrites, ignore=[re.escape(name) for head in family.heads for name in head.repeats])
