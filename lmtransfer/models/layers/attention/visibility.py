"""The keys in a query's own sequence that the query may not see, and the mask that hides them.

Shape legend: S slots of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unseen_keys(positions_S: Tensor, *, causal: bool, reach: int | None) -> Tensor:
    """Return True where a query (row) may not see a key (column) of its sequence, (S, S).

    Args:
        positions_S: position of each slot within the sequence.
        causal: a query sees only keys at its own position and before.
        reach: a query sees only keys at most this many positions away; None for no limit.
    """
    ahead = positions_S[None, :] - positions_S[:, None]
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        unseen |= ahead > 0
    if reach is not None:
        unseen |= ahead.abs() > reach
    return unseen


def attention_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Build a mask to add to attention scores: a large negative number where ``hidden`` is True, else 0.

    On a CPU, adding a mask is several times faster than filling with it. The number is finite because some queries see
    no key; with minus infinity, 0/0 would enter the gradients. Such a query gives all keys the same weight.

    Args:
        hidden: True at keys that a query may not see, of any shape.
    """
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min / 2)
