"""Which keys of its own sequence a query may not see, and how scores say so.

Shape legend: S slots of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unseen_keys(positions_S: Tensor, *, causal: bool, reach: int | None) -> Tensor:
    """True where a query (row) may not see a key (column) of its sequence, (S, S).

    Args:
        positions_S: of the slots, within the sequence.
        causal: a query sees keys at its own position and before.
        reach: a query sees keys at most this many positions away; None: all.
    """
    ahead = positions_S[None, :] - positions_S[:, None]
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        unseen |= ahead > 0
    if reach is not None:
        unseen |= ahead.abs() > reach
    return unseen


def attention_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What hides keys when it is added to their scores: a large negative number where ``hidden``, else 0.

    Adding is several times as fast on a CPU as filling by a mask. The number is finite, since a query may see
    nothing at all, and 0/0 would get into the gradients; such a query weighs all keys alike.

    Args:
        hidden: True at keys that may not be seen, of any shape.
        dtype: of the scores.
    """
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min / 2)
