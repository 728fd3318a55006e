from __future__ import annotations

import math

import pytest
import torch
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.transfer.layer_selection import OneLayer, ScalarMix, normalize_sequences

LENGTHS = torch.tensor([3, 1, 4])


def _layers(num: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(8, 5) for _ in range(num)]


def test_one_layer_is_that_layer() -> None:
    assert OneLayer(index=0, num_layers=4).indices == (0,)
    assert OneLayer(index=4, num_layers=4).indices == (4,)
    assert OneLayer(index=-1, num_layers=4).indices == (4,)
    hidden = _layers(1)[0]
    assert OneLayer(index=2, num_layers=4)([hidden], LENGTHS) is hidden


@pytest.mark.parametrize("index", [5, -6])
def test_a_layer_that_is_not_there_is_refused(index: int) -> None:
    with refuses(ConfigError, f"transfer.layers={index}", " 0 ", " 4"):
        OneLayer(index=index, num_layers=4)


def test_a_new_mix_is_the_plain_mean_of_all_layers() -> None:
    layers = _layers(3)
    mix = ScalarMix(num_layers=2)
    assert mix.indices == (0, 1, 2)
    torch.testing.assert_close(mix(layers, LENGTHS), sum(layers) / 3)


def test_the_mix_is_gamma_times_softmax_weights() -> None:
    layers = _layers(3)
    mix = ScalarMix(num_layers=2)
    scalars = [0.5, -1.0, 2.0]
    mix.scalars.data = torch.tensor(scalars)
    mix.gamma.data = torch.tensor(1.7)
    total = sum(math.exp(s) for s in scalars)
    expected = sum(1.7 * math.exp(s) / total * layer for s, layer in zip(scalars, layers, strict=True))
    torch.testing.assert_close(mix(layers, LENGTHS), expected)


def test_normalised_sequences_have_mean_0_and_variance_1_each() -> None:
    hidden = _layers(1)[0] * 3 + 5
    parts = normalize_sequences(hidden, LENGTHS).split(LENGTHS.tolist())
    for part, raw in zip(parts, hidden.split(LENGTHS.tolist()), strict=True):
        expected = (raw - raw.mean()) / raw.std(correction=0)
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=1e-5)


def test_a_normalised_mix_does_not_depend_on_batch_mates() -> None:
    layers = _layers(3)
    mix = ScalarMix(num_layers=2, layer_norm=True)
    whole = mix(layers, LENGTHS)
    alone = mix([layer[:3] for layer in layers], LENGTHS[:1])
    torch.testing.assert_close(whole[:3], alone)
    scaled = mix([layer * 100 for layer in layers], LENGTHS)
    torch.testing.assert_close(whole, scaled, atol=1e-5, rtol=1e-5)
