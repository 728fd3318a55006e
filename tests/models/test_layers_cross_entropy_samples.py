"""Samples by uniform numbers are samples of the softmax."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from fakes.cuda.device import FakeCuda
from fakes.cuda.fake_tensors import fake_tensors
from torch.utils._python_dispatch import TorchDispatchMode

from lmtransfer.models.layers import cross_entropy
from lmtransfer.models.layers.cross_entropy import cross_entropy_sum, cross_entropy_sum_and_samples, sample_softmax


def _given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 8), torch.randn(11, 8), torch.randn(11)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    hidden, weight, bias = _given()
    draws = 40_000
    many, uniform = hidden.repeat(draws, 1), torch.rand(5 * draws)
    samples = sample_softmax(many, weight, bias, uniform, temperature=temperature).view(draws, 5)
    expected = ((hidden @ weight.T + bias) / temperature).softmax(-1)
    for row in range(5):
        counts = torch.bincount(samples[:, row], minlength=11).double()
        probabilities = expected[row].double()
        deviations = (counts - draws * probabilities) / (draws * probabilities * (1 - probabilities)).sqrt()
        likely = draws * probabilities > 5
        assert deviations[likely].abs().max() < 4.5
        assert counts[~likely].sum() < 60
    assert likely.sum() > 2


def test_positions_are_independent() -> None:
    hidden, weight, bias = _given()
    draws = 40_000
    pairs = sample_softmax(hidden[:1].repeat(2 * draws, 1), weight, bias, torch.rand(2 * draws)).view(draws, 2)
    same = (pairs[:, 0] == pairs[:, 1]).double().mean().item()
    probabilities = (hidden[0] @ weight.T + bias).softmax(-1)
    expected = probabilities.square().sum().item()
    assert same == pytest.approx(expected, abs=4.5 * math.sqrt(expected * (1 - expected) / draws))


def test_a_low_temperature_takes_the_best_and_chunks_cover_every_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "_CHUNK_SAMPLED", {"cpu": 22})  # two positions at a time, and one left over
    hidden, weight, bias = _given()
    best = (hidden @ weight.T + bias).argmax(-1)
    assert torch.equal(sample_softmax(hidden, weight, bias, torch.rand(5), temperature=1e-4), best)
    assert sample_softmax(hidden[:0], weight, bias, torch.rand(0)).shape == (0,)


def test_no_gradient_and_float32_under_autocast() -> None:
    hidden, weight, bias = (tensor.requires_grad_() for tensor in _given())
    many, uniform = hidden.repeat(2000, 1), torch.rand(10_000)
    exact = sample_softmax(many, weight, bias, uniform)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = sample_softmax(many, weight, bias, uniform)
    assert not exact.requires_grad
    assert torch.equal(exact, under)


def test_a_sample_is_the_first_id_beyond_the_uniform_number() -> None:
    hidden, weight, bias = _given()
    sums = (hidden @ weight.T + bias).double().softmax(-1).cumsum(-1)
    for number in (0.0, 0.25, 0.5, 1 - 2**-24):
        expected = [next(k for k, total in enumerate([*row[:-1].tolist(), 1.0]) if total > number) for row in sums]
        assert sample_softmax(hidden, weight, bias, torch.full((5,), number)).tolist() == expected


class _Made(TorchDispatchMode):
    """The dtypes of the products of matrices, and of all tensors of at least ``size`` numbers, that are computed."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.size, self.products, self.large = size, list[torch.dtype](), list[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.products += [made.dtype] * (func._schema.name in ("aten::mm", "aten::addmm"))
            self.large += [made.dtype] * (made.numel() >= self.size)
        return made


@pytest.mark.parametrize("chunk", [22, 1 << 19])
@pytest.mark.parametrize("large", [False, True])
def test_samples_of_the_logits_of_the_loss(chunk: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "_CHUNK_SAMPLED", {"cpu": chunk})
    monkeypatch.setattr(cross_entropy, "_CHUNK_LOGITS", 2 * chunk)
    if large:
        monkeypatch.setattr(cross_entropy, "_CrossEntropySum", cross_entropy._LargeCrossEntropySum)
    hidden, weight, bias = (tensor.requires_grad_() for tensor in _given())
    targets, weights, uniform = torch.randint(11, (5,)), torch.rand(5), torch.rand(5)
    alone = cross_entropy_sum(hidden, weight, bias, targets, weights)
    expected = sample_softmax(hidden, weight, bias, uniform, temperature=0.7)
    with _Made() as made:
        cross_entropy_sum_and_samples(*_given(), targets, weights, uniform_M=uniform)
    assert len(made.products) == (2 if chunk == 22 else 1)  # four positions at a time in the loss: one product each
    total, hits, samples = cross_entropy_sum_and_samples(
        hidden, weight, bias, targets, weights, uniform_M=uniform, temperature=0.7
    )
    assert torch.equal(total, alone[0])
    assert torch.equal(hits, alone[1])
    assert torch.equal(samples, expected)
    leaves = (hidden, weight, bias)
    for ours, theirs in zip(torch.autograd.grad(total, leaves), torch.autograd.grad(alone[0], leaves), strict=True):
        assert torch.equal(ours, theirs)


def test_autocast_on_a_cpu_samples_from_float32_and_a_gpu_from_the_logits_of_the_loss(fake_cuda: FakeCuda) -> None:
    hidden, weight, bias = _given()
    targets, weights, uniform = torch.randint(11, (5,)), torch.ones(5), torch.rand(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        *_, samples = cross_entropy_sum_and_samples(hidden, weight, bias, targets, weights, uniform_M=uniform)
    assert torch.equal(samples, sample_softmax(hidden, weight, bias, uniform))
    products, copies = fake_cuda(_on_cuda)
    assert products == ["torch.bfloat16"]
    assert copies == 2  # both are of the loss: PyTorch copies bfloat16 logits before a softmax in float32


def _on_cuda() -> tuple[list[str], int]:
    """The dtypes of the products, and how many tensors of all logits are float32."""
    with fake_tensors(), mock.patch.object(cross_entropy, "_compute_on_device", cross_entropy._compute_chunk):
        hidden, weight, bias = (torch.zeros(*shape, device="cuda") for shape in ((4096, 8), (30_000, 8), (30_000,)))
        targets, numbers = (torch.zeros(4096, device="cuda", dtype=dtype) for dtype in (torch.int64, torch.float32))
        with _Made(4096 * 30_000) as made, torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            cross_entropy_sum_and_samples(hidden, weight, bias, targets, numbers, uniform_M=numbers)
    return [str(dtype) for dtype in made.products], made.large.count(torch.float32)
