"""Dropout (rate, scale, gradient and seed), and the gated feed-forward layer."""

from __future__ import annotations

import pytest
import torch

from lmtransfer.models.layers.building_blocks import Dropout, GatedFeedForward, dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_rate_and_the_scale(probability: float) -> None:
    torch.manual_seed(0)
    values = torch.full((400, 250), 2.0)
    dropped = dropout(values, probability)
    is_zero = dropped == 0
    deviation = (probability * (1 - probability) / values.numel()) ** 0.5
    assert is_zero.float().mean().item() == pytest.approx(probability, abs=5 * deviation)
    torch.testing.assert_close(dropped[~is_zero], torch.full_like(dropped[~is_zero], 2 / (1 - probability)))


def test_the_values_that_share_a_random_number_are_independent() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(100_000, 8), 0.5) != 0).double()
    correlations = torch.corrcoef(kept.T) - torch.eye(8)
    assert correlations.abs().max() < 5 / 100_000**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0, 7), (2, 3, 5)])
def test_the_gradient_goes_where_the_values_went(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.rand(shape, dtype=dtype).add(1).requires_grad_()
    dropped = dropout(values, 0.4)
    assert dropped.shape == shape
    assert dropped.dtype == dtype
    dropped.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, (dropped != 0) * torch.tensor(1 / 0.6, dtype=dtype))


def test_torchs_generator_decides() -> None:
    torch.manual_seed(3)
    first, second = dropout(torch.ones(99), 0.5), dropout(torch.ones(99), 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(torch.ones(99), 0.5), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_or_at_zero_and_all_at_one() -> None:
    values = torch.ones(50)
    assert Dropout(0.5).eval()(values) is values
    assert Dropout(0.0)(values) is values
    assert Dropout(1.0)(values).sum() == 0


def test_the_gated_layer_is_its_formula() -> None:
    torch.manual_seed(0)
    layer, x = GatedFeedForward(dim=6, hidden_dim=5, activation="gelu", bias=True), torch.randn(4, 6)
    torch.nn.init.normal_(layer.expand.bias)
    a, b = layer.expand.weight.chunk(2)
    c, d = layer.expand.bias.chunk(2)
    expected = (torch.nn.functional.gelu(x @ a.T + c) * (x @ b.T + d)) @ layer.contract.weight.T + layer.contract.bias
    torch.testing.assert_close(layer(x), expected)
