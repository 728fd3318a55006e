"""Attention in bfloat16 on a GPU: the variable-length kernel against the dense blocks, both against float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.gpu_device import gpu
from torch import Tensor

from lmtransfer.models.layers.attention.dense import dense_attention
from lmtransfer.models.layers.attention.dispatch import Layout, attention
from lmtransfer.models.layers.attention.flash import can_run_flash, has_kernel

pytestmark = pytest.mark.gpu

LENGTHS = [1, 128, 17, 64, 64, 3, 200, 31]
HEADS, WIDTH = 4, 64
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def _tensors(num_queries: int, num_keys: int, device: torch.device) -> list[Tensor]:
    """Return queries, keys, values and the gradient of the output, exactly representable in bfloat16."""
    torch.manual_seed(0)
    rows = [num_queries, num_keys, num_keys, num_queries]
    return [torch.randn(n, HEADS, WIDTH).to(device, torch.bfloat16) for n in rows]


def _results(attend: Attend, tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values, as float32."""
    *inputs, upstream = (tensor.to(dtype) for tensor in tensors)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    output = attend(*inputs)
    gradients = torch.autograd.grad(output, inputs, upstream)
    return [result.detach().float() for result in (output, *gradients)]


def _check(layout: Layout, num_queries: int, *, window: int | None) -> None:
    device = gpu()
    tensors = _tensors(num_queries, sum(layout.lengths), device)

    def chosen(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, layout, reach=window)

    def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return dense_attention(query, key, value, layout.dense, layout.causal, window, 0.0)

    assert (layout.flash is not None) == has_kernel(device)
    assert can_run_flash(*tensors[:3])
    exact = _results(dense, tensors, torch.float32)
    flash = _results(chosen, tensors, torch.bfloat16)
    blocks = _results(dense, tensors, torch.bfloat16)
    rounding = 1e-4 if device.type == "cuda" else 1e-2  # a CPU computes ragged dense blocks in float32
    for name, truth, ours, theirs in zip(("output", "query", "key", "value"), exact, flash, blocks, strict=True):
        assert ours.isfinite().all(), name
        assert truth.norm() > 0, name
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + rounding * truth.norm(), name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 16])
def test_flash_is_no_further_from_float32_than_twice_dense(causal: bool, window: int | None) -> None:
    _check(Layout.of(LENGTHS, device=gpu(), causal=causal), sum(LENGTHS), window=window)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_of_long_sequences_of_one_length_is_no_further_from_float32_than_twice_dense(
    causal: bool,
) -> None:
    _check(Layout.of([256] * 3, device=gpu(), causal=causal), 3 * 256, window=None)


def test_flash_of_selected_queries_is_no_further_from_float32_than_twice_dense() -> None:
    asked = [1, 20, 0, 64, 5, 1, 30, 0]  # number of queries in each sequence
    _check(Layout.of(LENGTHS, asked, device=gpu()), sum(asked), window=None)


def test_dense_blocks_in_float32_equal_those_of_the_cpu() -> None:
    device = gpu()
    tensors = _tensors(sum(LENGTHS), sum(LENGTHS), device)
    results = []
    for place in (device, torch.device("cpu")):
        layout = Layout.of(LENGTHS, device=place, causal=True)

        def attend(query: Tensor, key: Tensor, value: Tensor, layout: Layout = layout) -> Tensor:
            return attention(query, key, value, layout)

        results.append(_results(attend, [tensor.to(place) for tensor in tensors], torch.float32))
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here.cpu(), there, rtol=1e-4, atol=1e-5)
