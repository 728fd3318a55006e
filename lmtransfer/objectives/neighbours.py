"""The token after and the token before each token of a packed batch: what language models predict.

Shape legend: T tokens of a packed batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmtransfer.objectives.batch import PretrainingBatch


def num_neighbours(batch: PretrainingBatch, label: str) -> int:
    """How many tokens have a known neighbour: all but one a row, or all where rows have the label.

    Args:
        batch: the rows.
        label: "next_token" or "previous_token", the label of contiguous rows that holds the one beyond their edge.
    """
    return batch.original.num_tokens - (0 if label in batch.labels else batch.original.num_real)


def next_tokens(batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
    """The id that follows each token, int64 (T,), and 1 where it is known and counts, else 0, float32 (T,)."""
    return _neighbours(batch, "next_token", shift=-1, edges=batch.original.cu_seqlens[1:].long() - 1)


def previous_tokens(batch: PretrainingBatch) -> tuple[Tensor, Tensor]:
    """The id that precedes each token, int64 (T,), and 1 where it is known and counts, else 0, float32 (T,)."""
    return _neighbours(batch, "previous_token", shift=1, edges=batch.original.cu_seqlens[:-1].long())


def _neighbours(batch: PretrainingBatch, label: str, *, shift: int, edges: Tensor) -> tuple[Tensor, Tensor]:
    packed = batch.original
    targets_T = packed.tokens_T.roll(shift)
    weights_T = torch.ones(len(targets_T), device=targets_T.device)
    if label in batch.labels:
        targets_T[edges[: packed.num_real]] = batch.labels[label]
    else:
        weights_T[edges] = 0.0
    weights_T[packed.num_tokens :] = 0.0  # filler
    return targets_T, weights_T
