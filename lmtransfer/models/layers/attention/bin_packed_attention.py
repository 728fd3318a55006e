"""Attention over short sequences of different lengths on a CPU: several sequences share a row.

One block per length would require many small products, and one block as wide as the longest sequence would consist
mostly of spare slots. Shared rows are few and full, and they have few shapes, so that the CPU builds each bfloat16
kernel once. One copy turns the rows of queries, keys or values into the head vectors. On two AVX512-BF16 cores, forward
and backward in bfloat16, 32 sequences of 5 to 50 tokens, 4 heads of 64: 1.7 ms; in blocks (in float32, because of their
many shapes) 5.4 ms.

Shape legend: B sequences, N packed queries, T packed keys, H heads, K head width, G rows, Q query slots and S key slots
of a row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtransfer.models.layers.attention.visibility import attention_mask, unseen_keys

#: A row is as wide as the longest sequence, rounded up to a multiple of this (to a smaller multiple for a selection of
#: queries). The number of rows is rounded up to an even number. A CPU builds a kernel for each shape of a bfloat16
#: product, so few shapes are better.
_WIDTH_MULTIPLE = 32
_QUERIES_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class RowSlots:
    """The positions of packed rows (queries or keys) in the slots of G rows.

    Attributes:
        size: number of slots of each of the G rows.
        packed_GS: index of the packed row in each slot, row after row; spare slots hold packed row 0.
        slot_N: the slot of each packed row.
        sequence_GS: the sequence of each slot, on the host; -1 at spare slots.
    """

    size: int
    packed_GS: Tensor
    slot_N: Tensor
    sequence_GS: np.ndarray
    _memory: dict[tuple[str, int, int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def gather_indices(self, stride: int, num_heads: int) -> Tensor:
        """Return the indices of the head vectors that fill all slots, one head after the other, (H G S).

        Args:
            stride: distance from one packed row to the next, in head vectors.
            num_heads: H.
        """
        key = ("gather", stride, num_heads)
        if key not in self._memory:
            heads_H1 = torch.arange(num_heads, device=self.packed_GS.device)[:, None]
            self._memory[key] = (self.packed_GS * stride + heads_H1).reshape(-1)
        return self._memory[key]

    def restore_indices(self, num_heads: int) -> Tensor:
        """Return the slots that hold the head vectors of each packed row, one row after the other, (N H)."""
        key = ("restore", 0, num_heads)
        if key not in self._memory:
            heads_H = torch.arange(num_heads, device=self.slot_N.device)
            self._memory[key] = (self.slot_N[:, None] + len(self.packed_GS) * heads_H).reshape(-1)
        return self._memory[key]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """G rows, each with several sequences side by side.

    Attributes:
        queries, keys: slots of the queries and of the keys.
        apart_GQS: True where a query and a key belong to different sequences; spare slots count as one more sequence.
    """

    queries: RowSlots
    keys: RowSlots
    apart_GQS: Tensor
    _memory: dict[tuple[torch.dtype, bool, int | None], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def attention_mask(self, dtype: torch.dtype, *, causal: bool, reach: int | None) -> Tensor:
        """Return the mask to add to the scores, (G, Q, S); see ``visibility.attention_mask``.

        Args:
            causal: a query sees only keys at its own position and before.
            reach: a query sees only keys at most this many positions away; None for no limit.
        """
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
        """Lay out B sequences.

        Args:
            lengths: number of keys of each sequence.
            counts: number of queries of each sequence, if only some tokens are queries; None if every token is a query.
            device: device of the indices.
        """
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
    """Assign slots to ``counts_B`` packed rows of each sequence; sequences in a shared row are side by side."""
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


def shared_row_attention(
    query_NHK: Tensor,
    key_THK: Tensor,
    value_THK: Tensor,
    rows: SharedRows,
    *,
    causal: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)) v within each sequence.

    Args:
        key_THK: packed keys.
        value_THK: packed values.
        rows: which sequences share a row.
        causal: a query sees only keys at its own position and before.
        reach: a query sees only keys at most this many positions away; None for no limit.

    Returns:
        (N, H, K).
    """
    mask_GQS = rows.attention_mask(query_NHK.dtype, causal=causal, reach=reach)
    return _SharedRowAttention.apply(query_NHK, key_THK, value_THK, rows, mask_GQS)


class _SharedRowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: SharedRows, mask_GQS: Tensor) -> Tensor:
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
    """Arrange packed rows in slots, one head after the other, (H G, S, K)."""
    heads, width = packed_NHK.shape[1:]
    if packed_NHK.stride(2) != 1 or packed_NHK.stride(1) != width or packed_NHK.stride(0) % width:
        packed_NHK = packed_NHK.contiguous()
    stride = packed_NHK.stride(0) // width
    # After a joint projection the other parts lie between the packed rows, so a row starts every ``stride`` vectors.
    vectors = packed_NHK.as_strided(((len(packed_NHK) - 1) * stride + heads, width), (width, 1))
    return vectors.index_select(0, slots.gather_indices(stride, heads)).view(-1, slots.size, width)


def _as_packed(slotted: Tensor, slots: RowSlots, heads: int) -> Tensor:
    """Arrange slots, one head after the other, as packed rows, (N, H, K)."""
    width = slotted.shape[2]
    return slotted.view(-1, width).index_select(0, slots.restore_indices(heads)).view(-1, heads, width)
