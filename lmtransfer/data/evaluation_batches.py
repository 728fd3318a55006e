"""Batches for evaluation: every row once, in an order that suits the hardware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from lmtransfer.data.step_plan import lanes, micro_batches, share
from lmtransfer.data.stream import Source
from lmtransfer.randomness import permutation


def evaluation_batches(
    source: Source,
    *,
    micro_batch_tokens: int,
    max_tokens: int | None = None,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    contiguous: bool = False,
) -> Iterator[Any]:
    """The rows of epoch 0 once, by length: batches for evaluation.

    Args:
        source: the rows.
        micro_batch_tokens: most tokens of a batch (a longer row makes a batch of its own).
        max_tokens: take a random subset of at most this many tokens (at least one row); None takes all.
        seed: of the subset.
        rank: which of the ranks this is; each gets a share of the batches.
        world_size: how many ranks there are.
        contiguous: the rows are one text, as in ``PlannedStream``; the first ``max_tokens`` of each lane are taken, in
            order, and each rank gets a share of the lanes.
    """
    plan = source.plan(0)
    if contiguous:
        yield from _evaluation_lanes(source, plan, micro_batch_tokens, max_tokens, rank, world_size)
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


def _evaluation_lanes(
    source: Source, plan: Any, micro_batch_tokens: int, max_tokens: int | None, rank: int, world_size: int
) -> Iterator[Any]:
    longest = int(plan.lengths.max(initial=1))
    num_full = int((plan.lengths == longest).sum())
    num_lanes = min(max(micro_batch_tokens // longest, 1), num_full)
    order, edges = lanes(plan.lengths, batch_examples=num_lanes)
    num_steps = len(edges) - 1
    if max_tokens is not None:
        num_steps = min(num_steps, max(max_tokens // (num_lanes * longest), 1))
    mine = share(num_lanes, rank, world_size)
    for place in range(num_steps if len(mine) else 0):
        rows = order[edges[place] : edges[place + 1]][mine.start : mine.stop]
        yield cast(Any, source).build(0, plan, rows, follows=place > 0)
