"""Packed attention against a loop over sequences, heads and queries; the flash layout; rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from fakes.cuda.varlen import flash_on_cpu
from support.objective_table import small_model
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.execution import compile_blocks
from lmtransfer.models.layers.attention.cpu import LongAttention, row_ranges
from lmtransfer.models.layers.attention.dense import dense_attention
from lmtransfer.models.layers.attention.dispatch import Layout, attention
from lmtransfer.models.layers.attention.flash import FlashLayout, can_run_flash
from lmtransfer.models.layers.attention.self_attention import rotary_positions

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


LENGTHS = [1, 90, 17, 64, 64, 3]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _flash() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        flash_on_cpu(patch)
        yield


def _check(layout: Layout, num_queries: int, *, width: int, window: int | None = None) -> None:
    """Check that output and gradients match those of the dense blocks, within the precision of bfloat16."""
    torch.manual_seed(0)
    rows = [torch.randn(n, 2, width).bfloat16() for n in (num_queries, *[sum(layout.lengths)] * 2, num_queries)]
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        query, key, value, upstream = (tensor.to(dtype) for tensor in rows)
        inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
        if dtype == torch.bfloat16:
            assert can_run_flash(*inputs)
            output = attention(*inputs, layout, reach=window)
        else:
            output = dense_attention(*inputs, layout.dense, layout.causal, window, 0.0)
        results.append([output, *torch.autograd.grad(output, inputs, upstream)])
    for ours, exact in zip(*results, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.float() - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("width", [8, 12])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_is_what_dense_blocks_compute(causal: bool, window: int | None, width: int) -> None:
    _check(Layout.of(LENGTHS, causal=causal), sum(LENGTHS), width=width, window=window)


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_of_one_length_are_computed_together(causal: bool) -> None:
    layout = Layout.of([256, 256], causal=causal)
    assert layout.flash is not None
    assert layout.flash.equal_length == 256
    _check(layout, 512, width=8)
    for others in ([256, 255], [128, 128]):
        assert FlashLayout.of(others, None, CPU, causal=causal).equal_length is None


@pytest.mark.parametrize("width", [16, 41])
def test_flash_of_selected_queries(width: int) -> None:
    asked = [1, 20, 0, 64, 5, 0]
    _check(Layout.of(LENGTHS, asked), sum(asked), width=width)


def test_sequences_of_two_kinds() -> None:
    layout = Layout.of(LENGTHS, num_causal=2)
    query, key, value = (torch.randn(sum(LENGTHS), 2, 8).bfloat16() for _ in range(3))
    whole = attention(query, key, value, layout)
    size = sum(LENGTHS[:2])
    for part, kind in ((slice(None, size), LENGTHS[:2]), (slice(size, None), LENGTHS[2:])):
        alone = attention(query[part], key[part], value[part], Layout.of(kind, causal=part.start is None))
        assert torch.equal(whole[part], alone)


@pytest.mark.parametrize(
    ("query", "value", "width"),
    [
        (torch.float32, torch.float32, 64),
        (torch.float32, torch.bfloat16, 64),
        (torch.bfloat16, torch.float16, 64),
        (torch.bfloat16, torch.bfloat16, 264),
    ],
)
def test_what_the_kernel_does_not_take(query: torch.dtype, value: torch.dtype, width: int) -> None:
    assert not can_run_flash(*(torch.zeros(4, 2, width, dtype=dtype) for dtype in (query, query, value)))


def test_ragged_batches_of_one_budget_have_one_layout() -> None:
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(50):
        lengths = rng.multinomial(4096 - 70, np.full(70, 1 / 70)) + 1
        layout = FlashLayout.of(lengths.tolist(), None, CPU, causal=False)
        offsets = layout.cu_keys.tolist()
        assert layout.cu_keys.dtype == torch.int32
        assert offsets[:71] == [0, *np.cumsum(lengths)]
        assert set(offsets[71:]) == {4096}
        assert layout.max_keys >= max(lengths)
        found.add((len(offsets), layout.max_queries, layout.max_keys))
    assert found == {(257, 128, 128)}
    layouts = set()  # each new layout is compiled; the lengths are like those of short documents cut at 512 tokens
    for _ in range(100):
        lengths = []
        while sum(lengths) < 5471:
            lengths.append(min(1 + int(rng.lognormal(3.9, 1.0)), 512, 5471 - sum(lengths)))
        layout = FlashLayout.of(lengths, None, CPU, causal=False)
        layouts.add((len(layout.cu_keys), layout.max_keys))
    assert len(layouts) == 1


def _batches(num: int) -> Iterator[tuple[PackedBatch, OutputPositions]]:
    """Yield ragged batches of 512 tokens, with 64 positions each."""
    rng = np.random.default_rng(0)
    for _ in range(num):
        lengths: list[int] = []
        while sum(lengths) < 440:
            lengths.append(int(rng.integers(2, 60)))
        rows = [rng.integers(4, 90, length) for length in lengths]
        batch = pack(rows, [(row % 2) for row in rows], capacity=512, max_length=60)
        positions = np.sort(rng.choice(sum(lengths), 64, replace=False))
        yield batch, OutputPositions.of(positions, batch.cu_seqlens.numpy())


@pytest.mark.parametrize(("name", "dropout"), [("bert_tiny", 0.1), ("modern_laptop", 0.0)])
def test_each_layer_is_one_graph_for_all_ragged_batches(
    name: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = nn.Module.compile

    def compile_as_one_graph(module: nn.Module, **settings: Any) -> None:
        compiled(module, fullgraph=True, backend="eager", **settings)

    monkeypatch.setattr(nn.Module, "compile", compile_as_one_graph)
    torch.compiler.reset()
    encoder, plain = (small_model(name, dropout=dropout) for _ in range(2))
    compile_blocks(encoder)
    for number, (batch, positions) in enumerate(_batches(4)):
        stance = torch.compiler.set_stance("fail_on_recompile") if number else nullcontext()
        for reads in (None, positions):
            with stance, torch.autocast("cpu", dtype=torch.bfloat16):
                output = encoder(batch, output_positions=reads).last
            output.float().square().sum().backward()
            if not dropout:
                torch.testing.assert_close(output, _eager(plain, batch, reads))
    assert all(parameter.grad is not None for block in encoder.blocks() for parameter in block.parameters())


@torch.no_grad()
def _eager(encoder: Any, batch: PackedBatch, reads: OutputPositions | None) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return encoder(batch, output_positions=reads).last


def test_turning_is_a_product_with_complex_numbers() -> None:
    torch.manual_seed(0)
    states = torch.randn(7, 2, 3, 10, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 0, 1, 500, 3])
    turned = rotary_positions(positions, head_dim=10, theta=100.0).rotate(states)
    for t, position in enumerate(positions.tolist()):
        for p in range(5):
            angle = torch.tensor(1j * position * 100.0 ** (-2 * p / 10), dtype=torch.complex128)
            pair = torch.complex(states[t, ..., p], states[t, ..., p + 5]) * angle.exp()
            torch.testing.assert_close(turned[t, ..., p], pair.real, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(turned[t, ..., p + 5], pair.imag, atol=1e-4, rtol=1e-4)


def test_scores_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 8).expand(40, 8), torch.randn(1, 8).expand(40, 8)
    turn = rotary_positions(torch.arange(40), head_dim=8, theta=50.0).rotate
    scores = turn(query) @ turn(key).T
    for distance in range(-39, 40):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)
    assert scores[0].std() > 0.1


def test_some_positions_turn_as_they_do_among_all_and_the_type_stays() -> None:
    states = torch.randn(9, 2, 4)
    whole, some = rotary_positions(torch.arange(9), head_dim=4, theta=10.0), torch.tensor([1, 4, 8])
    torch.testing.assert_close(whole.at(some).rotate(states[some]), whole.rotate(states)[some])
    assert whole.rotate(states.bfloat16()).dtype == torch.bfloat16
