"""Packed attention against a loop over sequences, heads and queries."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from lmtransfer.models.layers.attention.cpu import LongAttention, row_ranges
from lmtransfer.models.layers.attention.dense import dense_attention
from lmtransfer.models.layers.attention.dispatch import Layout, attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def _brute_force(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], causal: bool, window: int | None
) -> Tensor:
    outputs, start = [], 0
    for length in lengths:
        for i in range(start, start + length):
            seen = [
                j
                for j in range(start, start + length)
                if (not causal or j <= i) and (window is None or abs(i - j) <= window)
            ]
            for head in range(query.shape[1]):
                scores = (key[seen, head] @ query[i, head]) / math.sqrt(query.shape[2])
                outputs.append(scores.softmax(0) @ value[seen, head])
        start += length
    return torch.stack(outputs).view_as(query)


def _chosen(lengths: list[int], causal: bool, window: int | None) -> Attend:
    return lambda q, k, v: attention(q, k, v, Layout.of(lengths, causal=causal), reach=window)


def _one_by_one(lengths: list[int], causal: bool, window: int | None) -> Attend:
    return lambda q, k, v: LongAttention.apply(q, k, v, row_ranges(lengths), causal, window)


def _in_blocks(lengths: list[int], causal: bool, window: int | None) -> Attend:
    return lambda q, k, v: dense_attention(q, k, v, Layout.of(lengths).dense, causal, window, 0.0)


@pytest.mark.parametrize("compute", [_chosen, _one_by_one, _in_blocks])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 3)])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [9], [1, 12, 7, 7, 30, 2], [1] * 4 + [40] * 2 + [11]])
def test_attention_and_its_gradients_equal_a_loop(
    lengths: list[int], causal: bool, window: int | None, compute: Callable[..., Attend]
) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(sum(lengths), 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    weights = torch.randn(sum(lengths), 2, 4, dtype=torch.float64)
    results = []
    ours = compute(lengths, causal, window)(*tensors)
    for output in (ours, _brute_force(*tensors, lengths, causal, window)):
        gradients = torch.autograd.grad((output * weights).sum(), tensors)
        results.append([output.detach(), *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_long_sequences_of_different_lengths_are_computed_one_by_one() -> None:
    lengths = [83, 220, 97]
    assert Layout.of(lengths).is_long
    assert not Layout.of([220, 220, 220]).is_long  # a single dense block
    assert not Layout.of([20, 131, 142]).is_long
    assert not Layout.of([220, 30, 30]).is_long  # mostly short
    assert not Layout.of(lengths, [1, 2, 3]).is_long  # a selection of queries
    torch.manual_seed(0)
    query, key, value = (torch.randn(sum(lengths), 2, 4, dtype=torch.float64) for _ in range(3))
    ours = attention(query, key, value, Layout.of(lengths))
    torch.testing.assert_close(ours, _brute_force(query, key, value, lengths, False, None), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("counts", [[0, 3, 1, 0, 2], [1, 1, 1, 1, 1], [2, 0, 0, 0, 0]])
@pytest.mark.parametrize("lengths", [[4, 9, 2, 33, 7], [8, 8, 8, 8, 8]])
def test_a_selection_of_queries_equals_the_same_queries_of_all(lengths: list[int], counts: list[int]) -> None:
    torch.manual_seed(0)
    joint = torch.randn(sum(lengths), 3, 2, 4, dtype=torch.float64, requires_grad=True)
    starts = np.cumsum([0, *lengths[:-1]])
    asked = [int(start) + place for start, count in zip(starts, counts, strict=True) for place in range(count)]
    weights = torch.randn(len(asked), 2, 4, dtype=torch.float64)
    query, key, value = joint.unbind(1)  # views, as in the attention layer
    some = attention(query[asked], key, value, Layout.of(lengths, counts))
    every = _brute_force(query, key, value, lengths, False, None)[asked]
    torch.testing.assert_close(some, every, atol=1e-10, rtol=1e-10)
    ours, theirs = (torch.autograd.grad((output * weights).sum(), joint)[0] for output in (some, every))
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_short_sequences_of_different_lengths_share_few_full_rows() -> None:
    lengths = np.random.default_rng(0).integers(2, 60, 64).tolist()
    rows = Layout.of(lengths).shared_rows
    assert rows.keys.size == 64
    assert rows.keys.sequence_GS.size < 1.15 * sum(lengths) + 64
    slots = rows.keys.slot_N.tolist()
    assert len(set(slots)) == sum(lengths)
    start = 0
    for sequence, length in enumerate(lengths):
        own = slots[start : start + length]
        assert own == list(range(own[0], own[0] + length))
        assert own[0] // 64 == own[-1] // 64  # in one row
        assert (rows.keys.sequence_GS.reshape(-1)[own] == sequence).all()
        start += length


def test_several_blocks_are_used_and_their_spare_slots_bounded() -> None:
    lengths = np.random.default_rng(0).integers(2, 400, 60).tolist()
    layout = Layout.of(lengths)
    slots = sum(layout.dense.keys.sizes)
    assert len(layout.dense.blocks) > 1
    assert slots < 1.25 * sum(lengths) + 256 * len(layout.dense.blocks)
    assert sum(block.size for block in layout.dense.blocks) == 60


def test_equal_lengths_need_no_copy_into_slots() -> None:
    layout = Layout.of([16] * 8)
    assert layout.dense.keys.moves is None
    assert len(layout.dense.blocks) == 1
    assert layout.dense.blocks[0].key_mask is None


def test_attention_dropout_keeps_the_mean_and_drops_its_share() -> None:
    torch.manual_seed(0)
    ones = torch.ones(64, 1, 1)
    zeros = torch.zeros(64, 1, 1)
    outputs = torch.stack([attention(zeros, zeros, ones, Layout.of([64]), dropout=0.25) for _ in range(200)])
    # Each output is (kept weights) / 64 / 0.75 of ones: mean 1, variance 0.25 / 0.75 / 64.
    assert abs(outputs.mean().item() - 1) < 0.005
    assert abs(outputs.var().item() - 0.25 / 0.75 / 64) < 0.0005


@pytest.mark.parametrize("lengths", [[3, 9, 5], [4, 4]])
def test_nothing_asked_is_nothing_answered(lengths: list[int]) -> None:
    key = torch.randn(sum(lengths), 2, 4)
    layout = Layout.of(lengths, [0] * len(lengths))
    assert attention(torch.zeros(0, 2, 4), key, key, layout).shape == (0, 2, 4)


def test_the_shapes_of_selected_queries_are_few() -> None:
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(50):
        lengths = rng.integers(5, 60, 32)
        rows = Layout.of(lengths.tolist(), rng.binomial(lengths, 0.15).tolist()).shared_rows
        sizes.add(rows.queries.size)
    assert sizes <= {16, 32}
