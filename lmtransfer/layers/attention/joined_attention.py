"""Attention of short sequences of different lengths on a processor: several side by side in a row.

Blocks of one length each would be many small products, and one block as wide as the longest sequence mostly spare
slots. Rows that sequences share are few, full, and of few shapes, so that bfloat16 kernels are built once; and a row of
queries, keys or values becomes the vectors of its heads in one copy. On two AVX512-BF16 cores, forward and backward in
bfloat16, 32 sequences of 5 to 50 tokens, 4 heads of 64: 1.7 ms, in blocks (in float32, for their many shapes) 5.4 ms.

Shape legend: N packed queries, T packed keys, H heads, K head width, G rows, Q query slots and S key slots of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmtransfer.layers.attention.joined_rows import JoinedRows, RowSlots


def joined_attention(
    query_NHK: Tensor,
    key_THK: Tensor,
    value_THK: Tensor,
    rows: JoinedRows,
    *,
    causal: bool = False,
    reach: int | None = None,
) -> Tensor:
    """Softmax(q k^T / sqrt(K)) v within each sequence.

    Args:
        query_NHK: packed queries.
        key_THK: packed keys.
        value_THK: packed values.
        rows: which sequences share a row.
        causal: a query sees keys at its own position and before.
        reach: a query sees keys at most this many positions away; None: all.

    Returns:
        (N, H, K).
    """
    hiding_GQS = rows.hiding(query_NHK.dtype, causal=causal, reach=reach)
    return _JoinedAttention.apply(query_NHK, key_THK, value_THK, rows, hiding_GQS)


class _JoinedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: JoinedRows, hiding_GQS: Tensor) -> Tensor:
        heads, width = query.shape[1:]
        q, k, v = _slotted(query, rows.queries), _slotted(key, rows.keys), _slotted(value, rows.keys)
        q = q.mul_(width**-0.5)
        scores = torch.bmm(q, k.transpose(1, 2))
        scores.view(heads, *hiding_GQS.shape).add_(hiding_GQS)
        weights = scores.softmax(-1)
        ctx.rows, ctx.heads = rows, heads
        ctx.save_for_backward(q, k, v, weights)
        return _packed(torch.bmm(weights, v), rows.queries, heads)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        queries, keys, heads, width = ctx.rows.queries, ctx.rows.keys, ctx.heads, q.shape[2]
        g = torch.zeros_like(q)  # spare slots stay 0
        g.view(-1, width).index_copy_(0, queries.restoring(heads), grad.reshape(-1, width))
        by_weight = torch.bmm(g, v.transpose(1, 2))
        by_score = torch.ops.aten._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        return (
            _packed(torch.bmm(by_score, k).mul_(width**-0.5), queries, heads),
            _packed(torch.bmm(by_score.transpose(1, 2), q), keys, heads),
            _packed(torch.bmm(weights.transpose(1, 2), g), keys, heads),
            None,
            None,
        )


def _slotted(packed_NHK: Tensor, slots: RowSlots) -> Tensor:
    """Packed rows as slots, one head after the other, (H G, S, K)."""
    heads, width = packed_NHK.shape[1:]
    if packed_NHK.stride(2) != 1 or packed_NHK.stride(1) != width or packed_NHK.stride(0) % width:
        packed_NHK = packed_NHK.contiguous()
    stride = packed_NHK.stride(0) // width
    # A part of a joint projection lies between other parts: its vectors are every so many-th of a head.
    vectors = packed_NHK.as_strided(((len(packed_NHK) - 1) * stride + heads, width), (width, 1))
    return vectors.index_select(0, slots.gathering(stride, heads)).view(-1, slots.size, width)


def _packed(slotted: Tensor, slots: RowSlots, heads: int) -> Tensor:
    """The same slots as packed rows, (N, H, K)."""
    width = slotted.shape[2]
    return slotted.view(-1, width).index_select(0, slots.restoring(heads)).view(-1, heads, width)
