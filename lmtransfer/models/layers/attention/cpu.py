"""Attention over ragged sequences on a CPU: short sequences share rows, and long sequences are computed one by one.

Shared rows all have the same width, and a mask hides the keys of the other sequences in a row.

A CPU multiplies the matrices of one long sequence as fast as those of a block of several sequences. If sequences are
computed one by one, on views of the packed rows, they need no copies and almost no spare slots. On two AVX512-BF16
cores, 32 sequences of 100 to 384 tokens, 4 heads of 64, forward and backward in bfloat16, take 42 ms, compared with 93
ms in dense blocks. A CPU builds a kernel for each shape of a bfloat16 product, so each sequence is computed on a range
of packed rows whose size is rounded up. A range extends into neighboring sequences, whose keys are hidden and whose
attention weights are set to 0.

Shape legend: T packed keys, N packed queries, B sequences, H heads, K head width, G shared rows, Q and S query and key
slots in a shared row, P packed rows in a range.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtransfer.models.layers.attention.dense import attention_mask, unseen_keys

#: The width of the rows is that of the longest sequence, rounded up to a multiple of the first constant; for a
#: selection of queries, to a multiple of the second. The number of rows is rounded up to an even number. All of this
#: limits the number of shapes, because a CPU builds a kernel for each shape of a bfloat16 product.
_WIDTH_MULTIPLE = 32
_QUERIES_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class RowSlots:
    """The positions of packed rows (queries or keys) in the slots of G rows.

    Attributes:
        size: number of slots in each of the G rows.
        packed_GS: index of the packed row in each slot, row after row; 0 for spare slots.
        slot_N: index of the slot of each packed row.
        sequence_GS: index of the sequence of each slot, on the host; -1 for spare slots.
    """

    size: int
    packed_GS: Tensor
    slot_N: Tensor
    sequence_GS: np.ndarray
    _memory: dict[tuple[str, int, int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def gather_indices(self, stride: int, num_heads: int) -> Tensor:
        """Return the indices of the head vectors for all slots, head by head, (H G S,).

        Args:
            stride: distance from one packed row to the next, in head vectors.
        """
        key = ("gather", stride, num_heads)
        if key not in self._memory:
            heads_H1 = torch.arange(num_heads, device=self.packed_GS.device)[:, None]
            self._memory[key] = (self.packed_GS * stride + heads_H1).reshape(-1)
        return self._memory[key]

    def restore_indices(self, num_heads: int) -> Tensor:
        """Return the indices of the slots with the head vectors of each packed row, row by row, (N H,)."""
        key = ("restore", 0, num_heads)
        if key not in self._memory:
            heads_H = torch.arange(num_heads, device=self.slot_N.device)
            self._memory[key] = (self.slot_N[:, None] + len(self.packed_GS) * heads_H).reshape(-1)
        return self._memory[key]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """G rows, each with several sequences side by side.

    Attributes:
        apart_GQS: True where a query and a key belong to different sequences; spare slots count as another sequence.
    """

    queries: RowSlots
    keys: RowSlots
    apart_GQS: Tensor
    _memory: dict[tuple[torch.dtype, bool, int | None], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def attention_mask(self, dtype: torch.dtype, *, causal: bool, reach: int | None) -> Tensor:
        """Return the mask to add to the scores, (G, Q, S)."""
        key = (dtype, causal, reach)
        if key not in self._memory:
            hidden_GQS = self.apart_GQS
            if causal or reach is not None:
                places_S = torch.arange(self.keys.size, device=hidden_GQS.device)
                hidden_GQS = hidden_GQS | unseen_keys(places_S, causal=causal, reach=reach)
            self._memory[key] = attention_mask(hidden_GQS, dtype)
        return self._memory[key]

    @classmethod
    def of(cls, lengths: Sequence[int], counts: Sequence[int] | None, device: torch.device) -> SharedRows:
        """Lay out B sequences; see ``Layout``."""
        width = -(-max(lengths) // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
        row_B = _shared_rows(lengths, width)
        num_rows = int(row_B.max()) + 1
        num_rows += num_rows % 2
        keys = _slots(np.asarray(lengths), row_B, num_rows, width, device)
        if counts is None:
            queries = keys
        else:
            num_queries = np.asarray(counts)
            most = int(np.bincount(row_B, weights=num_queries).max())
            most = max(1, -(-most // _QUERIES_MULTIPLE)) * _QUERIES_MULTIPLE
            queries = _slots(num_queries, row_B, num_rows, most, device)
        apart = queries.sequence_GS[:, :, None] != keys.sequence_GS[:, None, :]
        return cls(queries, keys, torch.from_numpy(apart).to(device))


def _shared_rows(lengths: Sequence[int], width: int) -> np.ndarray:
    """Assign a row to each sequence: best-fit bin packing, longest sequence first."""
    row_B = np.empty(len(lengths), dtype=np.int64)
    free_slots: list[tuple[int, int]] = []  # (free slots, index) of each row, ascending
    for sequence in sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence]):
        place = bisect_left(free_slots, (lengths[sequence], -1))
        num_free, row = free_slots.pop(place) if place < len(free_slots) else (width, len(free_slots))
        row_B[sequence] = row
        insort(free_slots, (num_free - lengths[sequence], row))
    return row_B


def _slots(counts_B: np.ndarray, row_B: np.ndarray, num_rows: int, size: int, device: torch.device) -> RowSlots:
    """Assign slots to the packed rows of each sequence; the sequences in a row are side by side."""
    order = np.argsort(row_B, kind="stable")
    before_B = np.empty_like(counts_B)
    before_B[order] = np.cumsum(counts_B[order]) - counts_B[order]
    of_row_G = np.bincount(row_B, weights=counts_B, minlength=num_rows).astype(np.int64)
    first_B = row_B * size + before_B - (np.cumsum(of_row_G) - of_row_G)[row_B]
    sequence_N = np.repeat(np.arange(len(counts_B)), counts_B)
    within_N = np.arange(len(sequence_N)) - (np.cumsum(counts_B) - counts_B)[sequence_N]
    slot_N = first_B[sequence_N] + within_N
    packed = np.zeros(num_rows * size, dtype=np.int64)
    packed[slot_N] = np.arange(len(slot_N))
    sequence = np.full(num_rows * size, -1)
    sequence[slot_N] = sequence_N
    return RowSlots(
        size=size,
        packed_GS=torch.from_numpy(packed).to(device),
        slot_N=torch.from_numpy(slot_N).to(device),
        sequence_GS=sequence.reshape(num_rows, size),
    )


class SharedRowAttention(torch.autograd.Function):
    """Computes softmax(q k^T / sqrt(K)) v within each sequence, (N, H, K); the mask is ``rows.attention_mask``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: SharedRows, mask_GQS: Tensor) -> Tensor:
        """Compute attention in all rows at once."""
        heads, width = query.shape[1:]
        q, k, v = _as_slots(query, rows.queries), _as_slots(key, rows.keys), _as_slots(value, rows.keys)
        q = q.mul_(width**-0.5)
        scores = torch.bmm(q, k.transpose(1, 2))
        scores.view(heads, *mask_GQS.shape).add_(mask_GQS)
        weights = scores.softmax(-1)
        ctx.rows, ctx.heads = rows, heads
        ctx.save_for_backward(q, k, v, weights)
        return _as_packed(torch.bmm(weights, v), rows.queries, heads)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        q, k, v, weights = ctx.saved_tensors
        queries, keys, heads, width = ctx.rows.queries, ctx.rows.keys, ctx.heads, q.shape[2]
        g = torch.zeros_like(q)  # spare slots stay 0
        g.view(-1, width).index_copy_(0, queries.restore_indices(heads), grad.reshape(-1, width))
        by_weight = torch.bmm(g, v.transpose(1, 2))
        by_score = torch.ops.aten._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        return (
            _as_packed(torch.bmm(by_score, k).mul_(width**-0.5), queries, heads),
            _as_packed(torch.bmm(by_score.transpose(1, 2), q), keys, heads),
            _as_packed(torch.bmm(weights.transpose(1, 2), g), keys, heads),
            None,
            None,
        )


def _as_slots(packed_NHK: Tensor, slots: RowSlots) -> Tensor:
    """Arrange packed rows in slots, head by head, (H G, S, K)."""
    heads, width = packed_NHK.shape[1:]
    if packed_NHK.stride(2) != 1 or packed_NHK.stride(1) != width or packed_NHK.stride(0) % width:
        packed_NHK = packed_NHK.contiguous()
    stride = packed_NHK.stride(0) // width
    # After a joint projection of queries, keys and values, a packed row starts every ``stride`` vectors.
    vectors = packed_NHK.as_strided(((len(packed_NHK) - 1) * stride + heads, width), (width, 1))
    return vectors.index_select(0, slots.gather_indices(stride, heads)).view(-1, slots.size, width)


def _as_packed(slotted: Tensor, slots: RowSlots, heads: int) -> Tensor:
    """Arrange slots, head by head, as packed rows, (N, H, K)."""
    width = slotted.shape[2]
    return slotted.view(-1, width).index_select(0, slots.restore_indices(heads)).view(-1, heads, width)


#: The size of a range is rounded up to a multiple of this.
_RANGE_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class RowRange:
    """The range of packed rows around one sequence.

    Attributes:
        start, stop: first packed row of the sequence, and first packed row after it.
        first: first packed row of the range.
        size: number of packed rows in the range, P.
    """

    start: int
    stop: int
    first: int
    size: int

    def heads_first(self, rows_THK: Tensor) -> Tensor:
        """Return a view of the rows of the range, (H, P, K)."""
        return rows_THK[self.first : self.first + self.size].transpose(0, 1)

    def own_rows(self, rows_HPK: Tensor) -> Tensor:
        """Return the rows of the range that belong to the sequence, (stop - start, H, K)."""
        return rows_HPK[:, self.start - self.first : self.stop - self.first].transpose(0, 1)

    def neighbors(self) -> Iterator[slice]:
        """Yield the slices of the range that belong to neighboring sequences."""
        if self.first < self.start:
            yield slice(0, self.start - self.first)
        if self.stop < self.first + self.size:
            yield slice(self.stop - self.first, self.size)


def row_ranges(lengths: Sequence[int]) -> list[RowRange]:
    """Build a range around each sequence; sizes are multiples of 16, but at most the number of packed rows."""
    total, start, ranges = sum(lengths), 0, []
    for length in lengths:
        size = min(total, -(-length // _RANGE_MULTIPLE) * _RANGE_MULTIPLE)
        ranges.append(RowRange(start, start + length, min(start, total - size), size))
        start += length
    return ranges


class LongAttention(torch.autograd.Function):
    """Computes softmax(q k^T / sqrt(K)) v within each sequence, (T, H, K), in the range around each sequence.

    All sequences together are one node of the autograd graph, which saves only the attention weights of each sequence.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        ranges: Sequence[RowRange],
        causal: bool,
        reach: int | None,
    ) -> Tensor:
        """Compute attention range by range."""
        query = query * query.shape[-1] ** -0.5
        output = torch.empty_like(query)
        unseen: dict[int, Tensor] = {}
        weights = []
        for around in ranges:
            q, k, v = (around.heads_first(rows) for rows in (query, key, value))
            scores_HPP = torch.bmm(q, k.transpose(1, 2))
            for neighbors in around.neighbors():
                scores_HPP[:, :, neighbors] = float("-inf")
            if causal or reach is not None:
                if around.size not in unseen:
                    hidden_PP = unseen_keys(torch.arange(around.size), causal=causal, reach=reach)
                    unseen[around.size] = attention_mask(hidden_PP, scores_HPP.dtype)
                scores_HPP += unseen[around.size]
            weights_HPP = scores_HPP.softmax(-1)
            for neighbors in around.neighbors():
                weights_HPP[:, neighbors] = 0
            output[around.start : around.stop] = around.own_rows(torch.bmm(weights_HPP, v))
            weights.append(weights_HPP)
        ctx.ranges = ranges
        ctx.save_for_backward(query, key, value, *weights)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values."""
        query, key, value, *weights = ctx.saved_tensors
        grads = [torch.empty_like(rows) for rows in (query, key, value)]
        for around, weights_HPP in zip(ctx.ranges, weights, strict=True):
            q, k, v, g = (around.heads_first(rows) for rows in (query, key, value, grad))
            by_weight = torch.bmm(g, v.transpose(1, 2))
            by_score = torch.ops.aten._softmax_backward_data(by_weight, weights_HPP, -1, weights_HPP.dtype)
            of_sequence = (
                torch.bmm(by_score, k),
                torch.bmm(by_score.transpose(1, 2), q),
                torch.bmm(weights_HPP.transpose(1, 2), g),
            )
            for target, rows in zip(grads, of_sequence, strict=True):
                target[around.start : around.stop] = around.own_rows(rows)
        return grads[0].mul_(query.shape[-1] ** -0.5), grads[1], grads[2], None, None, None
