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
    """The rows of epoch 0 once, by length: batches for evaluation.

    Which rows there are, and in contiguous text what each of them follows, depends neither on the batch size nor on
    the number of ranks.

    Args:
        source: the rows.
        micro_batch_tokens: most tokens of a batch (a longer row makes a batch of its own).
        max_tokens: take a random subset of at most this many tokens (at least one row); None takes all.
        seed: of the subset.
        rank: which of the ranks this is; each gets a share of the batches.
        world_size: how many ranks there are.
        num_lanes: the rows are one text, as in ``PlannedStream`` where it is contiguous, and are read in so many lanes
            of equal length side by side, and those left over as one more, which is shorter; with ``max_tokens`` the
            first rows of each lane are taken. Each rank gets a share of the lanes. None: rows stand alone.
    """
    plan = source.plan(0)
    if num_lanes is not None:
        lanes = _lanes(plan.lengths, num_lanes, max_tokens)
        wide = max(micro_batch_tokens // int(plan.lengths.max(initial=1)), 1)
        mine = share(len(lanes), rank, world_size)
        for group in _groups(lanes[mine.start : mine.stop], plan.lengths, wide):
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
    mine = share(len(parts), rank, world_size)
    for part in parts[mine.start : mine.stop]:
        yield source.build(0, plan, part)


def _lanes(lengths: np.ndarray, num_lanes: int, max_tokens: int | None) -> list[np.ndarray]:
    """The rows of each lane: rows of one length but for the last one, which may be shorter."""
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
    """The lanes in groups of at most ``wide`` of equal length in tokens, in order."""
    for _, alike in groupby(lanes, key=lambda rows: int(lengths[rows].sum())):
        together = list(alike)
        for start in range(0, len(together), wide):
            yield together[start : start + wide]
