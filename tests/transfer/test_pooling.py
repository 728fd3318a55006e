"""Compositions over packed sequences against loops over one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lmtransfer.transfer.pooling import (
    AttentionPooling,
    BiLstm,
    BiLstmStates,
    EveryToken,
    Max,
    Mean,
    OneToken,
    time_major_order,
)

LENGTHS = torch.tensor([3, 1, 7, 4, 7])
DIM = 6


def _hidden() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(int(LENGTHS.sum()), DIM, requires_grad=True)


def _attention(module: AttentionPooling, rows: Tensor) -> Tensor:
    scores = torch.stack([module.score(torch.tanh(module.project(row)))[0] for row in rows])
    return (torch.softmax(scores, dim=0)[:, None] * rows).sum(0)


def _lstm(module: BiLstm, rows: Tensor) -> Tensor:
    states, _ = module.lstm(rows[:, None])
    return states[:, 0].amax(0)


CASES: dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]] = {
    "mean": (Mean(dim=DIM), lambda module, rows: sum(rows) / len(rows)),
    "max": (Max(dim=DIM), lambda module, rows: torch.stack([rows[:, d].max() for d in range(DIM)])),
    "attention": (AttentionPooling(dim=DIM, attention_dim=4), _attention),
    "bilstm": (BiLstm(dim=DIM, hidden_dim=5), _lstm),
}


@pytest.mark.parametrize("name", CASES)
def test_packed_equals_one_by_one_in_values_and_gradients(name: str) -> None:
    module, slow = CASES[name]
    packed, single = _hidden(), _hidden()
    ours = module(packed, LENGTHS)
    theirs = torch.stack([slow(module, rows) for rows in single.split(LENGTHS.tolist())])
    assert ours.shape == (len(LENGTHS), module.output_dim)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(packed.grad, single.grad)


def test_attention_pooling_survives_large_scores() -> None:
    module = AttentionPooling(dim=DIM, attention_dim=4)
    nn.init.constant_(module.score.weight, 1e4)
    assert torch.isfinite(module(_hidden(), LENGTHS)).all()


def test_one_token_passes_it_on() -> None:
    module = OneToken(dim=DIM, which="last")
    assert module.tokens == "last"
    rows = torch.randn(5, DIM, dtype=torch.bfloat16)
    torch.testing.assert_close(module(rows, LENGTHS), rows.float())


def test_time_major_order_is_that_of_pack_sequence() -> None:
    rows = torch.arange(int(LENGTHS.sum()))
    expected = nn.utils.rnn.pack_sequence(list(rows.split(LENGTHS.tolist())), enforce_sorted=False)
    order, batch_sizes = time_major_order(LENGTHS)
    assert batch_sizes.tolist() == expected.batch_sizes.tolist()
    steps = torch.from_numpy(order).split(batch_sizes.tolist())
    for ours, theirs in zip(steps, expected.data.split(batch_sizes.tolist()), strict=True):
        assert sorted(ours.tolist()) == sorted(theirs.tolist())


def test_the_bilstm_stays_in_float32_under_autocast() -> None:
    module = CASES["bilstm"][0]
    plain = module(_hidden(), LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(_hidden(), LENGTHS), plain, rtol=0, atol=0)


def _random_hidden() -> Tensor:
    return torch.randn(int(LENGTHS.sum()), DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_every_token_passes_them_on() -> None:
    module = EveryToken(dim=DIM)
    assert (module.tokens, module.output_dim, list(module.parameters())) == ("all", DIM, [])
    half = _random_hidden().bfloat16()
    torch.testing.assert_close(module(half, LENGTHS), half.float(), rtol=0, atol=0)


def test_states_are_those_of_each_sequence_alone_in_values_and_gradients() -> None:
    torch.manual_seed(0)
    module = BiLstmStates(dim=DIM, hidden_dim=5)
    packed, single = _random_hidden(), _random_hidden()
    ours = module(packed, LENGTHS)
    theirs = torch.cat([module.lstm(rows[:, None])[0][:, 0] for rows in single.split(LENGTHS.tolist())])
    assert (module.tokens, module.output_dim) == ("all", 10)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(packed.grad, single.grad)


def test_the_lstm_stays_in_float32_under_autocast() -> None:
    module = BiLstmStates(dim=DIM, hidden_dim=5)
    plain = module(_random_hidden(), LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(_random_hidden(), LENGTHS), plain, rtol=0, atol=0)
