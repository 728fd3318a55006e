"""The assignment of rows to optimizer steps and micro-batches, which depends only on the lengths of the rows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lmtransfer.errors import ConfigError

#: The capacity of a forward pass is rounded up to a multiple of this, which suits matrix products.
_CAPACITY_MULTIPLE = 16


def cut_by_tokens(lengths: np.ndarray, max_tokens: int, *, key: str) -> list[int]:
    """Return the edges of consecutive groups, each with as many rows as fit.

    Args:
        lengths: tokens of each row, in order.
        max_tokens: maximum number of tokens in a group.
        key: name of the setting with the value ``max_tokens``, for the message.

    Returns:
        Edges from 0 to ``len(lengths)``; group i is rows [edges[i], edges[i + 1]).
    """
    check_longest(lengths, max_tokens, key=key)
    tokens = np.cumsum(lengths, dtype=np.int64).data
    edges, taken = [0], 0
    while edges[-1] < len(tokens):
        edges.append(bisect_right(tokens, taken + max_tokens, lo=edges[-1]))
        taken = tokens[edges[-1] - 1]
    return edges


def check_longest(lengths: np.ndarray, max_tokens: int, *, key: str) -> None:
    """Raise a ``ConfigError`` if a row is longer than ``max_tokens``, the value of the setting ``key``."""
    longest = int(lengths.max(initial=0))
    if longest > max_tokens:
        raise ConfigError(
            f"{key}={max_tokens} is less than the longest row ({longest} tokens): raise it to {longest} or more, or "
            "use shorter rows"
        )


def contiguous_streams(
    lengths: np.ndarray, *, batch_tokens: int | None = None, batch_examples: int | None = None
) -> tuple[np.ndarray, list[int]]:
    """Return the order of contiguous rows, and the edges of its steps: each step takes the next row of every stream.

    A stream is a contiguous part of the text. All rows have the same length, except perhaps a shorter last one. A
    shorter last row and rows that do not fill a step are not used.

    Args:
        lengths: tokens of each row, in the order of the text.
        batch_tokens: maximum number of tokens in a step; give this or ``batch_examples``.
        batch_examples: rows per step, which is the number of contiguous streams.

    Raises:
        ConfigError: a row has more tokens than a step, or the text has fewer rows than a step.
    """
    longest = int(lengths.max(initial=1))
    num_rows = int((lengths == longest).sum())
    if batch_tokens is not None and batch_tokens < longest:
        raise ConfigError(
            f"train.batch_tokens={batch_tokens} is less than a row ({longest} tokens): raise it to {longest} or more"
        )
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


def cut_evenly(lengths: np.ndarray, groups: int) -> list[slice]:
    """Cut rows into consecutive groups with about the same number of tokens; a row's midpoint decides its group.

    A group therefore exceeds its share by less than one row. Doubling the number of groups halves each group.

    Args:
        lengths: tokens of each row, in order.
        groups: number of groups. Each has at least one row if there are enough rows.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    middles = (2 * ends - lengths) * groups // (2 * int(ends[-1])) if len(ends) else ends
    edges = np.searchsorted(middles, np.arange(groups + 1))
    if len(lengths) >= groups:
        numbers = np.arange(groups + 1)
        edges = np.maximum.accumulate(edges - numbers) + numbers
        edges = np.minimum(edges, len(lengths) - numbers[::-1])
    return [slice(first, last) for first, last in pairwise(edges.tolist())]


def tokens_of_pass(batch_tokens: int, *, micro_batch_tokens: int | None, world_size: int) -> int:
    """Return a forward pass's share of a step's tokens; every rank performs the same number of passes.

    Args:
        batch_tokens: maximum number of tokens in a step over all ranks.
        micro_batch_tokens: maximum number of tokens in a share; None for one pass per rank.
    """
    passes = 1 if micro_batch_tokens is None else -(-batch_tokens // (world_size * micro_batch_tokens))
    return -(-batch_tokens // (world_size * passes))


def capacity_of_pass(
    batch_tokens: int, *, longest: int, micro_batch_tokens: int | None = None, world_size: int = 1
) -> int:
    """Return the maximum number of tokens in a forward pass, whatever the lengths of the rows.

    Args:
        batch_tokens: maximum number of tokens in a step over all ranks.
        longest: tokens of the longest row.
        micro_batch_tokens: see ``tokens_of_pass``.
    """
    share = tokens_of_pass(batch_tokens, micro_batch_tokens=micro_batch_tokens, world_size=world_size)
    return min(batch_tokens, -(-(share + longest) // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE)


@dataclass(frozen=True, slots=True)
class RankShare:
    """The micro-batches of one rank in one step.

    Attributes:
        first: number of micro-batches that are reserved for earlier ranks.
        micro_batches: row numbers of each micro-batch of this rank.
        num_fillers: number of trailing micro-batches that do not count because they repeat a row of the step.
    """

    first: int
    micro_batches: list[np.ndarray]
    num_fillers: int = 0


def rank_share(
    rows: np.ndarray, lengths: np.ndarray, *, pass_tokens: int | None, rank: int = 0, world_size: int = 1
) -> RankShare:
    """Divide one step's rows among the ranks, and cut one rank's share into micro-batches.

    Rows are sorted by length and cut evenly. Every rank has the same number of micro-batches; some are fillers if the
    step has fewer rows than micro-batches. The rows of a rank do not depend on the number of micro-batches.

    Args:
        rows: row numbers, in the step's order.
        lengths: tokens of each row.
        pass_tokens: tokens per micro-batch, which may exceed this by less than one row; None for one micro-batch per
            rank.
    """
    rows, lengths = _by_length(rows, lengths)
    passes = 1 if pass_tokens is None else max(1, -(-int(lengths.sum(dtype=np.int64)) // (world_size * pass_tokens)))
    groups = cut_evenly(lengths, world_size * passes)
    of_ranks = [
        [rows[group] for group in groups[first : first + passes] if group.start < group.stop]
        for first in range(0, len(groups), passes)
    ]
    num_fillers = max(map(len, of_ranks)) - len(of_ranks[rank])
    return RankShare(rank * passes, of_ranks[rank] + [rows[:1]] * num_fillers, num_fillers)


def micro_batches(
    rows: np.ndarray, lengths: np.ndarray, *, micro_batch_tokens: int, rank: int = 0, world_size: int = 1
) -> list[np.ndarray]:
    """Cut one rank's rows into micro-batches of rows with similar lengths, each with as many rows as fit.

    Args:
        rows: row numbers.
        lengths: tokens of each row.
        micro_batch_tokens: maximum number of tokens in a micro-batch.
        world_size: number of ranks, which share the tokens evenly.
    """
    rows, lengths = _by_length(rows, lengths)
    own = cut_evenly(lengths, world_size)[rank]
    edges = cut_by_tokens(lengths[own], micro_batch_tokens, key="train.micro_batch_tokens")
    return [rows[own][first:last] for first, last in pairwise(edges)]


def _by_length(rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(lengths, kind="stable")
    return rows[order], lengths[order]


def share(count: int, rank: int, world_size: int) -> range:
    """Return one rank's consecutive range of ``count`` micro-batches; the ranks' shares differ by at most one."""
    return range(rank * count // world_size, (rank + 1) * count // world_size)
