"""Sequences of like length as dense blocks.

Shape legend: T packed keys, N packed queries, B sequences, G sequences of a block, S slots of all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: A block may hold this many spare slots for each real one, plus a fixed allowance: on two cores, opening another
#: block costs about as much as 256 spare slots.
_SPARE_SHARE = 0.15
_SPARE_SLOTS = 256
#: Up to this length a slot costs what its projections cost; beyond it, scores make it dearer in proportion.
_CHEAP_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Moves:
    """How packed rows get into slots and back.

    Attributes:
        gather_S: packed row of each slot; spare slots repeat a row of their own sequence.
        restore_N: slot of each packed row.
        absent: packed rows without a slot (keys of a sequence in which nothing is asked), or None.
    """

    gather_S: Tensor
    restore_N: Tensor
    absent: Tensor | None


@dataclass(frozen=True, slots=True)
class Slots:
    """Where packed rows lie in the dense blocks.

    Attributes:
        sizes: slots of each block.
        moves: how rows get there; None when the packed rows already are the blocks.
    """

    sizes: tuple[int, ...]
    moves: Moves | None


@dataclass(frozen=True, slots=True)
class Block:
    """Sequences of like length that are computed as one dense block.

    Attributes:
        size: G, how many sequences.
        num_queries, num_keys: slots of each sequence.
        positions: position within its sequence of each key slot, int64, (keys).
        key_mask: True where a key slot is real, (G, keys); None when all are.
    """

    size: int
    num_queries: int
    num_keys: int
    positions: Tensor
    key_mask: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseBlocks:
    """Packed queries over packed keys in dense blocks.

    Attributes:
        queries, keys: their slots.
        blocks: the blocks, in the order of the slots.
    """

    queries: Slots
    keys: Slots
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, keys_B: np.ndarray, queries_B: np.ndarray | None, device: torch.device | str) -> DenseBlocks:
        """Lay out B sequences; sequences in which nothing is asked have no slots.

        Args:
            keys_B: packed keys of each sequence, int64.
            queries_B: packed queries of each where they are a selection of its tokens; None: every token is one.
            device: where the indices are needed.
        """
        asked_B = keys_B if queries_B is None else queries_B
        starts_k, starts_q = np.cumsum(keys_B) - keys_B, np.cumsum(asked_B) - asked_B
        groups = [group[asked_B[group] > 0] for group in _groups(keys_B)]
        groups = [group for group in groups if len(group)]
        key_slots, query_slots, blocks = [], [], []
        for group in groups:
            keys, queries = keys_B[group], asked_B[group]
            k_index = _slots(starts_k[group], keys)
            q_index = k_index if queries_B is None else _slots(starts_q[group], queries)
            ragged = bool((keys != keys.max()).any())
            blocks.append(
                Block(
                    size=len(group),
                    num_queries=int(queries.max()),
                    num_keys=int(keys.max()),
                    positions=torch.arange(int(keys.max()), device=device),
                    key_mask=torch.from_numpy(np.arange(keys.max()) < keys[:, None]).to(device) if ragged else None,
                )
            )
            key_slots.append(k_index.reshape(-1))
            query_slots.append(q_index.reshape(-1))
        keys_layout = _layout(key_slots, int(keys_B.sum()), device)
        queries_layout = keys_layout if queries_B is None else _layout(query_slots, int(asked_B.sum()), device)
        return cls(queries_layout, keys_layout, tuple(blocks))


def _groups(lengths: np.ndarray) -> list[np.ndarray]:
    """Sequences, longest first, cut where another block is cheaper than more spare slots."""
    if len(lengths) and (lengths == lengths[0]).all():
        return [np.arange(len(lengths))]
    order = np.argsort(-lengths, kind="stable")
    groups: list[np.ndarray] = []
    first = real = spare = 0
    for place, sequence in enumerate(order):
        longest, length = int(lengths[order[first]]), int(lengths[sequence])
        price = max(1.0, longest / _CHEAP_LENGTH)
        if price * (spare + longest - length) > _SPARE_SLOTS + _SPARE_SHARE * real:
            groups.append(np.sort(order[first:place]))
            first, real, spare, longest = place, 0, 0, length
        real += length
        spare += longest - length
    groups.append(np.sort(order[first:]))
    return sorted(groups, key=lambda group: group[0])


def _slots(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The packed row of each slot, (G, slots); spare slots repeat the sequence's first row."""
    slots = np.arange(counts.max())[None]
    return starts[:, None] + np.where(slots < counts[:, None], slots, 0)


def _layout(slots: list[np.ndarray], num_rows: int, device: torch.device | str) -> Slots:
    gather = np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64)
    sizes = tuple(len(places) for places in slots)
    if len(gather) == num_rows and (gather == np.arange(num_rows)).all():
        return Slots(sizes, None)
    # Written backwards, so that a row repeated in spare slots keeps its first slot, the real one.
    restore = np.full(num_rows, -1, dtype=np.int64)
    restore[gather[::-1]] = np.arange(len(gather) - 1, -1, -1)
    absent = np.flatnonzero(restore < 0)
    restore[absent] = 0
    moves = Moves(
        gather_S=torch.from_numpy(gather).to(device),
        restore_N=torch.from_numpy(restore).to(device),
        absent=torch.from_numpy(absent).to(device) if len(absent) else None,
    )
    return Slots(sizes, moves)


def to_blocks(rows: Tensor, slots: Slots) -> tuple[Tensor, ...]:
    """Packed rows as the slots of each dense block."""
    if slots.moves is not None:
        rows = _ToBlocks.apply(rows, slots.moves)
    return (rows,) if len(slots.sizes) == 1 else rows.split(slots.sizes)


def from_blocks(slotted: Tensor, slots: Slots) -> Tensor:
    """The slots of all dense blocks, end to end, as packed rows."""
    return slotted if slots.moves is None else _FromBlocks.apply(slotted, slots.moves)


class _ToBlocks(torch.autograd.Function):
    """Packed rows into slots. Backward copies, where autograd's own would add row by row.

    That is exact: a spare slot repeats a row but never has a gradient, as its key is hidden and its output dropped.
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
    """Slots back into packed rows, dropping the spare ones."""

    @staticmethod
    def forward(ctx: Any, slotted: Tensor, moves: Moves) -> Tensor:
        ctx.moves, ctx.shape = moves, slotted.shape
        return slotted.index_select(0, moves.restore_N)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.new_zeros(ctx.shape).index_copy_(0, ctx.moves.restore_N, grad), None
