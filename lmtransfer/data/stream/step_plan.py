"""Assign rows to optimiser steps and micro-batches, from the lengths of the rows only."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lmtransfer.errors import ConfigError


def cut_by_tokens(lengths: np.ndarray, max_tokens: int, *, key: str) -> list[int]:
    """Edges of consecutive groups, each with as many rows as fit.

    Args:
        lengths: tokens of each row, in order.
        max_tokens: maximum number of tokens of a group.
        key: name of the setting with the value ``max_tokens``, for the message.

    Returns:
        Edges from 0 to ``len(lengths)``; group i is rows [edges[i], edges[i + 1]).

    Raises:
        ConfigError: a row is longer than ``max_tokens``.
    """
    longest = int(lengths.max(initial=0))
    if longest > max_tokens:
        raise ConfigError(
            f"{key}={max_tokens} is less than the longest row ({longest} tokens): raise it to {longest} or more, or "
            "use shorter rows"
        )
    return _cut(np.cumsum(lengths, dtype=np.int64), max_tokens)


def _cut(ends: np.ndarray, max_tokens: int, latest: np.ndarray | None = None) -> list[int]:
    """Edges of consecutive groups with as many rows as fit; see ``cut_evenly`` for ``latest``.

    Args:
        ends: tokens of each row and all rows before it.
        max_tokens: maximum number of tokens of a group; no row has more.
        latest: limits of the edges.
    """
    tokens = ends.data
    edges, taken = [0], 0
    while edges[-1] < len(tokens):
        edge = bisect_right(tokens, taken + max_tokens, lo=edges[-1])
        edges.append(edge if latest is None else min(edge, int(latest[edges[-1]])))
        taken = tokens[edges[-1] - 1]
    return edges


def contiguous_streams(
    lengths: np.ndarray, *, batch_tokens: int | None = None, batch_examples: int | None = None
) -> tuple[np.ndarray, list[int]]:
    """The order of contiguous rows, and the edges of the steps in it: each step takes the next row of every stream.

    A stream is a contiguous part of the text. All rows have the same length except the last one. The last row, if it is
    shorter, and the rows that do not fill a step are not used.

    Args:
        lengths: tokens of each row, in the order of the text.
        batch_tokens: maximum number of tokens of a step; give this or ``batch_examples``.
        batch_examples: rows of a step: the number of contiguous streams.

    Raises:
        ConfigError: a row has more tokens than a step, or the text has fewer rows than a step.
    """
    longest = int(lengths.max(initial=1))
    num_rows = int((lengths == longest).sum())
    if batch_tokens is not None and batch_tokens < longest:
        raise ConfigError(f"train.batch_tokens={batch_tokens} is less than a row ({longest} tokens): raise it")
    num_streams = batch_tokens // longest if batch_tokens is not None else batch_examples
    assert num_streams is not None
    num_steps = num_rows // num_streams
    if num_steps == 0:
        raise ConfigError(
            f"the text has {num_rows} rows of {longest} tokens, but a step needs {num_streams} contiguous streams "
            "with a row each: lower train.batch_tokens or objective.max_length, or use more text"
        )
    order = np.arange(num_streams * num_steps).reshape(num_streams, num_steps).T.reshape(-1)
    return order, list(range(0, len(order) + 1, num_streams))


def cut_evenly(lengths: np.ndarray, groups: int, *, latest: np.ndarray | None = None) -> list[int]:
    """Edges of at most ``groups`` consecutive groups, the largest of which has as few tokens as possible.

    Args:
        lengths: tokens of each row, in order.
        groups: maximum number of groups.
        latest: for each row, the last edge that a group may have that begins at this row; None: no limit.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total, longest = int(lengths.sum(dtype=np.int64)), int(lengths.max(initial=0))
    if groups == 1:
        return _cut(ends, total)
    sizes = range(max(longest, -(-total // groups)), total + 1)
    smallest = bisect_left(sizes, True, key=lambda size: len(_cut(ends, size, latest)) - 1 <= groups)
    return _cut(ends, sizes[smallest], latest)


def largest_share(tokens: int, longest: int, groups: int) -> int:
    """The most tokens that a group of ``cut_evenly`` can have, whatever the lengths of the rows.

    Args:
        tokens: tokens of all rows.
        longest: tokens of the longest row.
        groups: number of groups.
    """
    return min(tokens, -(-tokens // groups) + longest)


@dataclass(frozen=True, slots=True)
class RankShare:
    """The micro-batches of one rank in one step.

    Attributes:
        first: number of micro-batches that are reserved for earlier ranks.
        micro_batches: row numbers of each micro-batch of this rank.
    """

    first: int
    micro_batches: list[np.ndarray]


def rank_share(
    rows: np.ndarray, lengths: np.ndarray, *, micro_batch_tokens: int | None, rank: int = 0, world_size: int = 1
) -> RankShare:
    """Share one step's rows between the ranks, and cut the share of one rank into micro-batches.

    Rows are sorted by length. A single rank fills each micro-batch with as many rows as fit. Several ranks wait for the
    slowest one, so each gets consecutive rows with about equal numbers of tokens, and cuts them evenly. Together they
    have at most as many micro-batches as one rank, rounded up to a multiple of the number of ranks.

    Args:
        rows: row numbers, in the step's order.
        lengths: tokens of each row.
        micro_batch_tokens: maximum number of tokens of a micro-batch; None: one micro-batch for each rank.
        rank: the rank.
        world_size: number of ranks.

    Raises:
        ConfigError: a row is longer than ``micro_batch_tokens``.
    """
    if world_size == 1 and micro_batch_tokens is not None:
        return RankShare(0, micro_batches(rows, lengths, micro_batch_tokens=micro_batch_tokens))
    rows, lengths = _by_length(rows, lengths)
    most, latest = 1, None
    if micro_batch_tokens is not None:
        most = max(1, -(-(len(_micro_batch_edges(lengths, micro_batch_tokens)) - 1) // world_size))
        latest = _ends_of_micro_batches(lengths, micro_batch_tokens, count=most)
    shares = _pieces(cut_evenly(lengths, world_size, latest=latest))
    own = shares[rank] if rank < len(shares) else slice(0)
    return RankShare(rank * most, [rows[own][piece] for piece in _pieces(cut_evenly(lengths[own], most))])


def _ends_of_micro_batches(lengths: np.ndarray, max_tokens: int, *, count: int) -> np.ndarray:
    """For each row, the end of ``count`` micro-batches that begin at this row and have as many rows as fit."""
    ends = np.cumsum(lengths, dtype=np.int64)
    end_of_one = np.append(np.searchsorted(ends, ends - lengths + max_tokens, side="right"), len(lengths))
    latest = np.arange(len(lengths) + 1)
    for _ in range(count):
        latest = end_of_one[latest]
    return latest


def micro_batches(rows: np.ndarray, lengths: np.ndarray, *, micro_batch_tokens: int) -> list[np.ndarray]:
    """Cut rows into micro-batches of rows with similar lengths, each with as many rows as fit.

    Args:
        rows: row numbers.
        lengths: tokens of each row.
        micro_batch_tokens: maximum number of tokens of a micro-batch.

    Raises:
        ConfigError: a row is longer than ``micro_batch_tokens``.
    """
    rows, lengths = _by_length(rows, lengths)
    return [rows[piece] for piece in _pieces(_micro_batch_edges(lengths, micro_batch_tokens))]


def _by_length(rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(lengths, kind="stable")
    return rows[order], lengths[order]


def _micro_batch_edges(lengths: np.ndarray, max_tokens: int) -> list[int]:
    return cut_by_tokens(lengths, max_tokens, key="train.micro_batch_tokens")


def _pieces(edges: list[int]) -> list[slice]:
    return [slice(first, last) for first, last in pairwise(edges)]


def share(count: int, rank: int, world_size: int) -> range:
    """The consecutive range of one rank's micro-batches out of ``count``; the ranks' numbers differ by at most one."""
    return range(rank * count // world_size, (rank + 1) * count // world_size)
