"""Which keys of its own sequence a query may not see.

Shape legend: S slots of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unseen_keys(positions_S: Tensor, *, causal: bool, window: int | None) -> Tensor:
    """True where a query (row) may not see a key (column) of its sequence, (S, S).

    Args:
        positions_S: of the slots, within the sequence.
        causal: a query sees keys at its own position and before.
        window: a query sees keys at most this many positions away; None: all.
    """
    ahead = positions_S[None, :] - positions_S[:, None]
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        unseen |= ahead > 0
    if window is not None:
        unseen |= ahead.abs() > window
    return unseen
