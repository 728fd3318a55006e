"""Evaluation batches: every row once, in an order that suits the hardware."""

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
    num_streams: int | None = None,
) -> Iterator[Any]:
    """Yield evaluation batches: each row of epoch 0 once, sorted by length.

    The selected rows do not depend on the batch size or on the number of ranks. In contiguous text, neither does the
    predecessor of each row.

    Args:
        micro_batch_tokens: maximum number of tokens in a batch (a longer row is a batch by itself).
        max_tokens: size of a random subset, at most this many tokens (at least one row); None for all rows.
        seed: seed of the subset.
        rank: rank of this process; each rank gets about the same number of tokens.
        num_streams: if given, the rows are contiguous text, as in a contiguous ``PlannedStream``, and are read in this
            number of parallel contiguous streams of equal length. The remaining rows form one more, shorter stream.
            With ``max_tokens``, only the first rows of each stream are used. Each rank gets a share of the streams.
            None if rows are independent.
    """
    plan = source.plan(0)
    if num_streams is not None:
        streams = _streams(plan.lengths, num_streams, max_tokens)
        width = max(micro_batch_tokens // int(plan.lengths.max(initial=1)), 1)
        local = share(len(streams), rank, world_size)
        for group in _groups(streams[local.start : local.stop], plan.lengths, width):
            for place, rows in enumerate(np.stack(group, axis=1)):
                yield source.build(0, plan, rows, follows=place > 0)
        return
    rows = np.arange(len(plan.lengths))
    if max_tokens is not None and plan.lengths.sum(dtype=np.int64) > max_tokens:
        rows = permutation(len(rows), seed, "subset")
        fitting = np.cumsum(plan.lengths[rows], dtype=np.int64).searchsorted(max_tokens, side="right")
        rows = rows[: max(int(fitting), 1)]
    limit = max(micro_batch_tokens, int(plan.lengths[rows].max(initial=0)))
    own = {"rank": rank, "world_size": world_size}
    for part in micro_batches(rows, plan.lengths[rows], micro_batch_tokens=limit, **own):
        yield source.build(0, plan, part)


def _streams(lengths: np.ndarray, num_streams: int, max_tokens: int | None) -> list[np.ndarray]:
    """Return the rows of each contiguous stream; all rows have the same length, except perhaps a shorter last one."""
    longest = int(lengths.max(initial=1))
    num_full = int((lengths == longest).sum())
    most = len(lengths) if max_tokens is None else max(max_tokens // longest, 1)
    num_streams = max(min(num_streams, num_full, most), 1)
    height = num_full // num_streams
    left_over = np.arange(height * num_streams, len(lengths))
    streams = list(np.arange(height * num_streams).reshape(num_streams, height)[:, : max(most // num_streams, 1)])
    if max_tokens is None or lengths.sum(dtype=np.int64) <= max_tokens:
        streams.append(left_over)
    return [stream for stream in streams if len(stream)]


def _groups(streams: list[np.ndarray], lengths: np.ndarray, width: int) -> Iterator[list[np.ndarray]]:
    """Yield groups of at most ``width`` consecutive streams with the same number of tokens."""
    for _, alike in groupby(streams, key=lambda rows: int(lengths[rows].sum())):
        together = list(alike)
        for start in range(0, len(together), width):
            yield together[start : start + width]
