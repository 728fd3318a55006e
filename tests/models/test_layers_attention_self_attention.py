"""Rotary positions against products of complex numbers."""

from __future__ import annotations

import torch

from lmtransfer.models.layers.attention.self_attention import rotary_positions


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
