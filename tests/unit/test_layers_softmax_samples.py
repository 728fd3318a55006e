"""Samples by uniform numbers are samples of the softmax."""

from __future__ import annotations

import math

import pytest
import torch

from lmtransfer.layers import softmax_samples
from lmtransfer.layers.softmax_samples import sample_softmax


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
    monkeypatch.setattr(softmax_samples, "_CHUNK_LOGITS", {"cpu": 22})  # two positions at a time, and one left over
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
