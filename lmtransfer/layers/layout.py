"""How the sequences of a packed batch are laid out for attention: decided once a batch, used by every layer.

Shape legend: T packed keys, N packed queries, B sequences, G sequences of a block, S slots of all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: A block may hold this many spare slots for each real one, plus a fixed allowance: on two cores, opening another
#: block costs about as much as 256 spare slots.
_SPARE_SHARE = 0.15
_SPARE_SLOTS = 256
#: Mean length of sequences that a processor computes one by one.
_LONG = 80
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
class Layout:
    """Packed queries over packed keys.

    Attributes:
        selected: the queries are a selection of the tokens; only attention that sees everything may use such a layout.
        lengths: packed keys of each sequence.
        is_long: every token is a query, sequences differ in length and have many tokens: blocks would be wasteful.
        cu_queries, cu_keys: (B + 1) int32 offsets, for the variable-length kernels.
        max_queries, max_keys: the longest sequence's, for the same.
        queries, keys: the slots of the dense blocks, for every other backend.
        blocks: the dense blocks.
    """

    selected: bool
    lengths: tuple[int, ...]
    is_long: bool
    cu_queries: Tensor
    cu_keys: Tensor
    max_queries: int
    max_keys: int
    queries: Slots
    keys: Slots
    blocks: tuple[Block, ...]

    @classmethod
    def of(
        cls,
        num_keys: Sequence[int],
        num_queries: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Layout:
        """Lay out B sequences.

        Args:
            num_keys: packed keys of each sequence.
            num_queries: packed queries of each sequence where they are a selection of its tokens; if omitted, every
                token is a query.
            device: where the indices are needed.
        """
        keys_B = np.asarray(num_keys, dtype=np.int64)
        queries_B = keys_B if num_queries is None else np.asarray(num_queries, dtype=np.int64)
        starts_k, starts_q = _offsets(keys_B), _offsets(queries_B)
        groups = [group[queries_B[group] > 0] for group in _groups(keys_B)]
        groups = [group for group in groups if len(group)]
        key_slots, key_sizes, query_slots, query_sizes, blocks = [], [], [], [], []
        for group in groups:
            keys, queries = keys_B[group], queries_B[group]
            k_index = _slots(starts_k[group], keys)
            q_index = k_index if num_queries is None else _slots(starts_q[group], queries)
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
            key_sizes.append(k_index.size)
            query_sizes.append(q_index.size)
        keys_layout = _layout(key_slots, key_sizes, int(starts_k[-1]), device)
        if num_queries is None:
            queries_layout = keys_layout
        else:
            queries_layout = _layout(query_slots, query_sizes, int(starts_q[-1]), device)
        return cls(
            selected=num_queries is not None,
            lengths=tuple(keys_B.tolist()),
            is_long=num_queries is None and len(blocks) > 0 and _are_long(keys_B),
            cu_queries=torch.from_numpy(starts_q.astype(np.int32)).to(device),
            cu_keys=torch.from_numpy(starts_k.astype(np.int32)).to(device),
            max_queries=int(queries_B.max(initial=0)),
            max_keys=int(keys_B.max(initial=0)),
            queries=queries_layout,
            keys=keys_layout,
            blocks=tuple(blocks),
        )


def unseen_keys(positions_S: Tensor, *, causal: bool, window: int | None) -> Tensor:
    """True where a query (row) may not see a key (column) of its sequence, (S, S).

    Args:
        positions_S: of the slots, within the sequence.
        causal: a query sees keys at its own position and before.
        window: a query sees keys at most this many positions away; None: all.
    """
    ahead = positions_S[None, :] - positions_S[:, None]
    unseen = torch.zeros_like(ahead, dtype=torch.bool)
    if causal:
        unseen |= ahead > 0
    if window is not None:
        unseen |= ahead.abs() > window
    return unseen


def _are_long(lengths: np.ndarray) -> bool:
    return bool((lengths != lengths[0]).any() and lengths.mean() >= _LONG)


def _offsets(counts: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


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


def _layout(slots: list[np.ndarray], sizes: list[int], num_rows: int, device: torch.device | str) -> Slots:
    gather = np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64)
    if len(gather) == num_rows and (gather == np.arange(num_rows)).all():
        return Slots(tuple(sizes), None)
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
    return Slots(tuple(sizes), moves)
