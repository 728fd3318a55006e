"""The relative shift against its definition; dtypes, dropout and selected queries in relative attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lmtransfer.data.batch import pack
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.layers.relative_attention import add_shifted, sinusoids
from lmtransfer.models.transformer_xl import TransformerXlEncoder
from lmtransfer.models.xlnet import XlnetEncoder

SIZES: dict[str, Any] = {"vocab_size": 90, "dim": 32, "num_layers": 2, "num_heads": 4, "hidden_dim": 64}
LENGTHS = [5, 40, 1, 23, 23]


def _rows(seed: int, lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 90, n) for n in lengths]


@pytest.mark.parametrize(("queries", "memory"), [(5, 0), (4, 3), (1, 0), (1, 6), (3, 9)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_shift_adds_the_entry_of_the_distance(queries: int, memory: int, causal: bool) -> None:
    torch.manual_seed(0)
    keys = memory + queries
    distances = list(range(keys - 1, -2 if causal else -queries, -1))
    scores = torch.randn(2, 3, queries, keys, dtype=torch.float64, requires_grad=True)
    by_distance = torch.randn(3, 2, queries, len(distances), dtype=torch.float64, requires_grad=True)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen = seen.tril(memory)
    ours = add_shifted(scores.clone(), by_distance, queries - 1).masked_fill(~seen, 0.0)
    theirs = torch.zeros_like(ours)
    for i in range(queries):
        for j in range(keys):
            if seen[i, j]:
                place = distances.index(memory + i - j)
                theirs[:, :, i, j] = scores[:, :, i, j] + by_distance[:, :, i, place].T
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    local = torch.autograd.grad((ours * weights).sum(), (scores, by_distance))
    expected = torch.autograd.grad((theirs * weights).sum(), (scores, by_distance))
    for gradient, reference in zip(local, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_sinusoids_turn_at_their_wave_lengths() -> None:
    features = sinusoids(torch.tensor([0, 1, -1, 25]), 6)
    assert features[0].tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(features[1, :3], -features[2, :3])
    torch.testing.assert_close(features[1, 3:], features[2, 3:])
    waves = torch.tensor([25.0, 25 / 10000 ** (1 / 3), 25 / 10000 ** (2 / 3)])
    torch.testing.assert_close(features[3], torch.cat([waves.sin(), waves.cos()]))


@pytest.mark.parametrize("lengths", [LENGTHS, [16, 16, 16]])
@pytest.mark.parametrize("kind", [TransformerXlEncoder, XlnetEncoder])
def test_bfloat16_is_near_float32(kind: Any, lengths: list[int]) -> None:
    torch.manual_seed(0)
    encoder = kind(**SIZES, memory_length=9, norm="pre", dropout=0.0)
    segments = [(np.arange(n) >= n // 2).astype(np.int64) for n in lengths]
    before, batch = pack(_rows(0, [12] * len(lengths))), pack(_rows(1, lengths), segments)
    exact = encoder(batch, recurrent_state=encoder(before).recurrent_state)
    exact.last.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in encoder.parameters()]
    encoder.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = encoder(batch, recurrent_state=encoder(before).recurrent_state)
    rounded.last.float().square().sum().backward()
    assert (rounded.last.float() - exact.last).norm() < 0.02 * exact.last.norm()
    for parameter, gradient in zip(encoder.parameters(), gradients, strict=True):
        assert (parameter.grad - gradient).norm() <= 0.1 * gradient.norm() + 1e-2


@pytest.mark.parametrize("kind", [TransformerXlEncoder, XlnetEncoder])
@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_dropout_is_for_training(kind: Any, name: str) -> None:
    torch.manual_seed(0)
    encoder = kind(**SIZES, **({"dropout": 0.0} | {name: 0.4}))
    batch = pack(_rows(0, LENGTHS))
    with torch.no_grad():
        assert not torch.equal(encoder(batch).last, encoder(batch).last)
        encoder.eval()
        assert torch.equal(encoder(batch).last, encoder(batch).last)


def test_no_query_at_all_gives_no_state() -> None:
    torch.manual_seed(0)
    encoder = XlnetEncoder(**SIZES, dropout=0.0)
    batch = pack(_rows(0, [3, 4]))
    output_positions = OutputPositions.of(np.zeros(0, dtype=np.int64), batch.cu_seqlens.numpy())
    output = encoder.two_stream(batch, order_T=torch.zeros(7, dtype=torch.int64), output_positions=output_positions)
    assert output.last.shape == (0, 32)
    assert output.layers[1].shape == (7, 32)


def test_xlnets_memory_may_be_read_at_some_positions_only() -> None:
    torch.manual_seed(0)
    encoder = XlnetEncoder(**SIZES, memory_length=9, dropout=0.0).eval()
    recurrent_state = encoder(pack(_rows(0, [12] * 5))).recurrent_state
    batch = pack(_rows(1, LENGTHS))
    output_positions = OutputPositions.of(np.array([0, 4, 30, 45, 46, 91]), batch.cu_seqlens.numpy())
    everywhere = encoder(batch, recurrent_state=recurrent_state).last
    torch.testing.assert_close(
        encoder(batch, recurrent_state=recurrent_state, output_positions=output_positions).last,
        everywhere[output_positions.positions_N],
    )
