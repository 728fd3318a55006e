"""Samples by Gumbel noise are samples of the softmax."""

from __future__ import annotations

import math

import pytest
import torch

from lmtransfer.layers import gumbel
from lmtransfer.layers.gumbel import sample_softmax


def _given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 8), torch.randn(11, 8), torch.randn(11)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    hidden, weight, bias = _given()
    draws = 40_000
    samples = sample_softmax(hidden.repeat(draws, 1), weight, bias, temperature=temperature).view(draws, 5)
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
    pairs = sample_softmax(hidden[:1].repeat(2 * draws, 1), weight, bias).view(draws, 2)
    same = (pairs[:, 0] == pairs[:, 1]).double().mean().item()
    probabilities = (hidden[0] @ weight.T + bias).softmax(-1)
    expected = probabilities.square().sum().item()
    assert same == pytest.approx(expected, abs=4.5 * math.sqrt(expected * (1 - expected) / draws))


def test_a_low_temperature_takes_the_best_and_chunks_cover_every_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gumbel, "_CHUNK_LOGITS", {"cpu": 22})  # two positions at a time, and one left over
    hidden, weight, bias = _given()
    best = (hidden @ weight.T + bias).argmax(-1)
    assert torch.equal(sample_softmax(hidden, weight, bias, temperature=1e-4), best)
    assert sample_softmax(hidden[:0], weight, bias).shape == (0,)


def test_no_gradient_and_float32_under_autocast() -> None:
    hidden, weight, bias = (tensor.requires_grad_() for tensor in _given())
    noise = torch.Generator().manual_seed(3)
    exact = sample_softmax(hidden.repeat(2000, 1), weight, bias, generator=noise)
    noise.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = sample_softmax(hidden.repeat(2000, 1), weight, bias, generator=noise)
    assert not exact.requires_grad
    assert torch.equal(exact, under)
