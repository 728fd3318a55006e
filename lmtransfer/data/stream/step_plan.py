"""Assign rows to optimiser steps and micro-batches, from the lengths of the rows only."""

from __future__ import annotations

from bisect import bisect_right

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
    ends = np.cumsum(lengths, dtype=np.int64).data
    edges, taken = [0], 0
    while edges[-1] < len(ends):
        edges.append(bisect_right(ends, taken + max_tokens, lo=edges[-1]))
        taken = ends[edges[-1] - 1]
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


def cut_evenly(lengths: np.ndarray, groups: int) -> list[int]:
    """Edges of ``groups`` consecutive groups with about equal numbers of tokens; groups without a row are removed."""
    ends = np.cumsum(lengths, dtype=np.int64)
    middles = ends - lengths / 2
    bounds = ends[-1] * np.arange(1, groups) / groups
    return np.unique(np.concatenate([[0], middles.searchsorted(bounds), [len(ends)]])).tolist()


def micro_batches(
    rows: np.ndarray, lengths: np.ndarray, *, micro_batch_tokens: int | None, groups: int = 1
) -> list[np.ndarray]:
    """Cut one step's rows into micro-batches of rows with similar lengths.

    Args:
        rows: row numbers, in the step's order.
        lengths: tokens of each row.
        micro_batch_tokens: maximum number of tokens of a micro-batch; None cuts into ``groups`` parts.
        groups: number of parts, if ``micro_batch_tokens`` is None.

    Raises:
        ConfigError: a row is longer than ``micro_batch_tokens``.
    """
    order = np.argsort(lengths, kind="stable")
    rows, lengths = rows[order], lengths[order]
    if micro_batch_tokens is None:
        edges = cut_evenly(lengths, groups)
    else:
        edges = cut_by_tokens(lengths, micro_batch_tokens, key="train.micro_batch_tokens")
    return [rows[first:last] for first, last in zip(edges[:-1], edges[1:], strict=True)]


def share(count: int, rank: int, world_size: int) -> range:
    """The consecutive range of one rank's micro-batches out of ``count``; the ranks' numbers differ by at most one."""
    return range(rank * count // world_size, (rank + 1) * count // world_size)
