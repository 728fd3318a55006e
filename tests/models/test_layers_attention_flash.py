"""The flash layout, with a plain loop instead of the kernel; and layers with flash attention as single graphs."""

from __future__ import annotations

from collections.abc import Iterator
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
from lmtransfer.models.layers.attention.dense import dense_attention
from lmtransfer.models.layers.attention.dispatch import Layout, attention
from lmtransfer.models.layers.attention.flash import FlashLayout, can_run_flash

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
