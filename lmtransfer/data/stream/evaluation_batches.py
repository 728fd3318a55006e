"""Batches for evaluation: every row once, in an order that suits the hardware."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from lmtransfer.data.stream.step_plan import micro_batches, share
from lmtransfer.data.stream.stream import Source
from lmtransfer.randomness import permutation


def evaluation_batches(
    source: Source,
    *,
    micro_batch_tokens: int,
    max_tokens: int | None = None,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_lanes: int | None = None,
) -> Iterator[Any]:
    """Batches for evaluation: each row of epoch 0 once, sorted by length.

    The selected rows do not depend on the batch size or on the number of ranks. In contiguous text, the row that each
    row follows does not depend on them either.

    Args:
        source: the rows.
        micro_batch_tokens: maximum number of tokens of a batch (a longer row is a batch by itself).
        max_tokens: take a random subset of at most this many tokens (at least one row); None takes all.
        seed: seed of the subset.
        rank: rank of this process; each rank gets a share of the batches.
        world_size: number of ranks.
        num_lanes: the rows are contiguous text, as in a contiguous ``PlannedStream``. They are read in this number of
            parallel contiguous streams of equal length. The remaining rows are one more stream, which is shorter. With
            ``max_tokens`` only the first rows of each stream are taken. Each rank gets a share of the streams. None:
            rows are independent.
    """
    plan = source.plan(0)
    if num_lanes is not None:
        lanes = _lanes(plan.lengths, num_lanes, max_tokens)
        wide = max(micro_batch_tokens // int(plan.lengths.max(initial=1)), 1)
        local = share(len(lanes), rank, world_size)
        for group in _groups(lanes[local.start : local.stop], plan.lengths, wide):
            for place, rows in enumerate(np.stack(group, axis=1)):
                yield source.build(0, plan, rows, follows=place > 0)
        return
    rows = np.arange(len(plan.lengths))
    if max_tokens is not None and plan.lengths.sum(dtype=np.int64) > max_tokens:
        rows = permutation(len(rows), seed, "subset")
        fitting = np.cumsum(plan.lengths[rows], dtype=np.int64).searchsorted(max_tokens, side="right")
        rows = rows[: max(int(fitting), 1)]
    limit = max(micro_batch_tokens, int(plan.lengths[rows].max(initial=0)))
    parts = micro_batches(rows, plan.lengths[rows], micro_batch_tokens=limit)
    local = share(len(parts), rank, world_size)
    for part in parts[local.start : local.stop]:
        yield source.build(0, plan, part)


def _lanes(lengths: np.ndarray, num_lanes: int, max_tokens: int | None) -> list[np.ndarray]:
    """The rows of each contiguous stream; all rows have the same length except the last one, which may be shorter."""
    longest = int(lengths.max(initial=1))
    num_full = int((lengths == longest).sum())
    most = len(lengths) if max_tokens is None else max(max_tokens // longest, 1)
    num_lanes = max(min(num_lanes, num_full, most), 1)
    height = num_full // num_lanes
    left_over = np.arange(height * num_lanes, len(lengths))
    lanes = list(np.arange(height * num_lanes).reshape(num_lanes, height)[:, : max(most // num_lanes, 1)])
    if max_tokens is None or lengths.sum(dtype=np.int64) <= max_tokens:
        lanes.append(left_over)
    return [lane for lane in lanes if len(lane)]


def _groups(lanes: list[np.ndarray], lengths: np.ndarray, wide: int) -> Iterator[list[np.ndarray]]:
    """Groups of at most ``wide`` consecutive streams with the same number of tokens."""
    for _, alike in groupby(lanes, key=lambda rows: int(lengths[rows].sum())):
        together = list(alike)
        for start in range(0, len(together), wide):
            yield together[start : start + wide]
