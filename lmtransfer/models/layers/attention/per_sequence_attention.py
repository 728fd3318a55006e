"""Attention over long sequences on a CPU, computed separately for each sequence on views of the packed rows.

A CPU multiplies the matrices of one long sequence as fast as those of a block of several sequences, so blocks gain
nothing. Without blocks, no row is copied, and almost no spare slot is computed or masked. On two AVX512-BF16 cores,
forward and backward in bfloat16, 32 sequences of 100 to 384 tokens, 4 heads of 64: 42 ms; in blocks 93 ms.

A sequence is computed in a range of rows. A CPU builds a kernel for each shape of a bfloat16 product, so the number of
rows is rounded up. The range then extends into neighboring sequences: their keys are hidden, and the attention weights
of their queries are set to 0.

Shape legend: T packed rows, H heads, K head width, P rows of a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmtransfer.models.layers.attention.visibility import attention_mask, unseen_keys

#: Lengths are rounded up to a multiple of this.
_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class RowRange:
    """The rows around one sequence.

    Attributes:
        start, stop: first row of the sequence and first row after it, counted over all packed rows.
        first: the first row of the range.
        size: P, the number of rows of the range.
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
        """Yield the places in the range that belong to neighboring sequences."""
        if self.first < self.start:
            yield slice(0, self.start - self.first)
        if self.stop < self.first + self.size:
            yield slice(self.stop - self.first, self.size)


def row_ranges(lengths: Sequence[int]) -> list[RowRange]:
    """Build a range around each sequence; sizes are multiples of 16, but at most the number of all rows."""
    total, start, ranges = sum(lengths), 0, []
    for length in lengths:
        size = min(total, -(-length // _MULTIPLE) * _MULTIPLE)
        ranges.append(RowRange(start, start + length, min(start, total - size), size))
        start += length
    return ranges


def long_attention(
    query_THK: Tensor,
    key_THK: Tensor,
    value_THK: Tensor,
    ranges: Sequence[RowRange],
    *,
    causal: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)) v within each sequence.

    Args:
        key_THK: packed keys.
        value_THK: packed values.
        ranges: one range per sequence.
        causal: a query sees only keys at its own position and before.
        reach: a query sees only keys at most this many positions away; None for no limit.

    Returns:
        (T, H, K).
    """
    return _LongAttention.apply(query_THK, key_THK, value_THK, ranges, causal, reach)


class _LongAttention(torch.autograd.Function):
    """One node of the autograd graph for all sequences; per sequence, backward needs only the attention weights."""

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
