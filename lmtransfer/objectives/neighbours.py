"""The token after and the token before each token of a packed batch: what language models predict.

Shape legend: T tokens of a packed batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lmtransfer.objectives.batch import PretrainingBatch

#: Which neighbour; also the label of contiguous rows that holds the one beyond their edge.
Neighbour = Literal["next_token", "previous_token"]


def num_neighbours(batch: PretrainingBatch, neighbour: Neighbour) -> int:
    """How many tokens have a known neighbour: all but one a row, or all where the one beyond the edge is known."""
    return batch.original.num_tokens - (0 if neighbour in batch.labels else batch.original.num_real)


def neighbours(batch: PretrainingBatch, neighbour: Neighbour) -> tuple[Tensor, Tensor]:
    """The id that follows (or precedes) each token, int64 (T,); and 1 where it is known and counts, else 0, (T,)."""
    packed = batch.original
    if neighbour == "next_token":
        shift, edges = -1, packed.cu_seqlens[1:].long() - 1
    else:
        shift, edges = 1, packed.cu_seqlens[:-1].long()
    targets_T = packed.tokens_T.roll(shift)
    weights_T = torch.ones(len(targets_T), device=targets_T.device)
    if neighbour in batch.labels:
        targets_T[edges[: packed.num_real]] = batch.labels[neighbour]
    else:
        weights_T[edges] = 0.0
    weights_T[packed.num_tokens :] = 0.0  # filler
    return targets_T, weights_T
