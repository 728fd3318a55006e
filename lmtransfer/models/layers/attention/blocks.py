"""Dense blocks: sequences of similar length share a block.

Shape legend: T packed keys, N packed queries, B sequences, G sequences of a block, S slots of all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.batch import upload

#: A block may hold this many spare slots per real slot, plus a fixed number: on two cores, one more block costs about
#: as much as 256 spare slots.
_SPARE_SHARE = 0.15
_SPARE_SLOTS = 256
#: Up to this length, the cost of a slot is constant (the projections). Beyond it, the scores dominate, and the cost
#: grows in proportion to the length.
_CHEAP_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Moves:
    """Indices that move packed rows into slots and back.

    Attributes:
        gather_S: packed row of each slot; spare slots repeat a row of their own sequence.
        restore_N: slot of each packed row.
        absent: packed rows without a slot (keys of a sequence without queries), or None.
    """

    gather_S: Tensor
    restore_N: Tensor
    absent: Tensor | None


@dataclass(frozen=True, slots=True)
class Slots:
    """The positions of packed rows in the dense blocks.

    Attributes:
        moves: indices that move rows into slots; None if the packed rows already form the blocks.
    """

    sizes: tuple[int, ...]
    moves: Moves | None


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """Sequences of similar length that are computed as one dense block.

    Attributes:
        size: G, the number of sequences.
        num_queries, num_keys: number of query slots and of key slots of each sequence.
        positions: position within its sequence of each key slot, int64, (keys).
        key_mask: True at real key slots, False at spare key slots, (G, keys); None if all are real.
    """

    size: int
    num_queries: int
    num_keys: int
    positions: Tensor
    key_mask: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseBlocks:
    """Packed queries over packed keys in dense blocks."""

    queries: Slots
    keys: Slots
    blocks: tuple[DenseBlock, ...]

    @classmethod
    def of(cls, keys_B: np.ndarray, queries_B: np.ndarray | None, device: torch.device | str) -> DenseBlocks:
        """Lay out B sequences; sequences without queries get no slots.

        Args:
            keys_B: number of packed keys of each sequence, int64.
            queries_B: number of packed queries of each sequence, if only some tokens are queries; None if every token
                is a query.
        """
        num_queries_B = keys_B if queries_B is None else queries_B
        starts_k, starts_q = np.cumsum(keys_B) - keys_B, np.cumsum(num_queries_B) - num_queries_B
        groups = [group[num_queries_B[group] > 0] for group in _groups(keys_B)]
        groups = [group for group in groups if len(group)]
        key_slots, query_slots, blocks = [], [], []
        for group in groups:
            keys, queries = keys_B[group], num_queries_B[group]
            k_index = _slots(starts_k[group], keys)
            q_index = k_index if queries_B is None else _slots(starts_q[group], queries)
            ragged = bool((keys != keys.max()).any())
            blocks.append(
                DenseBlock(
                    size=len(group),
                    num_queries=int(queries.max()),
                    num_keys=int(keys.max()),
                    positions=torch.arange(int(keys.max()), device=device),
                    key_mask=upload(np.arange(keys.max()) < keys[:, None], device) if ragged else None,
                )
            )
            key_slots.append(k_index.reshape(-1))
            query_slots.append(q_index.reshape(-1))
        keys_layout = _layout(key_slots, int(keys_B.sum()), device)
        queries_layout = keys_layout if queries_B is None else _layout(query_slots, int(num_queries_B.sum()), device)
        return cls(queries_layout, keys_layout, tuple(blocks))


def _groups(lengths: np.ndarray) -> list[np.ndarray]:
    """Sort the sequences, longest first, and start a new block where that is cheaper than more spare slots."""
    if len(lengths) and (lengths == lengths[0]).all():
        return [np.arange(len(lengths))]
    order = np.argsort(-lengths, kind="stable")
    groups: list[np.ndarray] = []
    first = real = spare = 0
    for place, sequence in enumerate(order):
        longest, length = int(lengths[order[first]]), int(lengths[sequence])
        cost = max(1.0, longest / _CHEAP_LENGTH)
        if cost * (spare + longest - length) > _SPARE_SLOTS + _SPARE_SHARE * real:
            groups.append(np.sort(order[first:place]))
            first, real, spare, longest = place, 0, 0, length
        real += length
        spare += longest - length
    groups.append(np.sort(order[first:]))
    return sorted(groups, key=lambda group: group[0])


def _slots(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the packed row of each slot, (G, slots); spare slots repeat the sequence's first row."""
    slots = np.arange(counts.max())[None]
    return starts[:, None] + np.where(slots < counts[:, None], slots, 0)


def _layout(slots: list[np.ndarray], num_rows: int, device: torch.device | str) -> Slots:
    gather = np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64)
    sizes = tuple(len(places) for places in slots)
    if len(gather) == num_rows and (gather == np.arange(num_rows)).all():
        return Slots(sizes, None)
    # Written from the last slot to the first: a row that spare slots repeat then keeps its first slot, the real one.
    restore = np.full(num_rows, -1, dtype=np.int64)
    restore[gather[::-1]] = np.arange(len(gather) - 1, -1, -1)
    absent = np.flatnonzero(restore < 0)
    restore[absent] = 0
    moves = Moves(
        gather_S=upload(gather, device),
        restore_N=upload(restore, device),
        absent=upload(absent, device) if len(absent) else None,
    )
    return Slots(sizes, moves)


def unseen_keys(positions_S: Tensor, *, causal: bool, reach: int | None) -> Tensor:
    """Return True where a query may not see a key of its sequence, (S, S): a later one, or one beyond ``reach``."""
    ahead = positions_S[None, :] - positions_S[:, None]
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        unseen |= ahead > 0
    if reach is not None:
        unseen |= ahead.abs() > reach
    return unseen


def attention_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Build a mask to add to attention scores: a large negative number where ``hidden`` is True, else 0.

    On a CPU, adding a mask is several times faster than filling with it. The number is finite because some queries see
    no key; with minus infinity, 0/0 would enter the gradients. Such a query gives all keys the same weight.
    """
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, torch.finfo(dtype).min / 2)


def to_blocks(rows: Tensor, slots: Slots) -> tuple[Tensor, ...]:
    """Move packed rows into the slots of each dense block."""
    if slots.moves is not None:
        rows = _ToBlocks.apply(rows, slots.moves)
    return (rows,) if len(slots.sizes) == 1 else rows.split(slots.sizes)


def from_blocks(slotted: Tensor, slots: Slots) -> Tensor:
    """Move the slots of all dense blocks, end to end, back into packed rows."""
    return slotted if slots.moves is None else _FromBlocks.apply(slotted, slots.moves)


class _ToBlocks(torch.autograd.Function):
    """Moves packed rows into slots; backward copies rows, while the backward of ``index_select`` would add them.

    Copying is exact: a spare slot repeats a row but never has a gradient, because its key is hidden and its output is
    dropped.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, moves: Moves) -> Tensor:
        ctx.moves = moves
        return rows.index_select(0, moves.gather_S)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows = grad.index_select(0, ctx.moves.restore_N)
        if ctx.moves.absent is not None:
            rows[ctx.moves.absent] = 0
        return rows, None


class _FromBlocks(torch.autograd.Function):
    """Moves slots back into packed rows; spare slots are dropped."""

    @staticmethod
    def forward(ctx: Any, slotted: Tensor, moves: Moves) -> Tensor:
        ctx.moves, ctx.shape = moves, slotted.shape
        return slotted.index_select(0, moves.restore_N)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.new_zeros(ctx.shape).index_copy_(0, ctx.moves.restore_N, grad), None
