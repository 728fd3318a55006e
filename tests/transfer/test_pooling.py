"""Compositions of packed sequences, compared with loops over one sequence at a time."""

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


def _states(module: BiLstmStates, rows: Tensor) -> Tensor:
    return module.lstm(rows[:, None])[0][:, 0]


#: A composition, and its result for one sequence: one vector, or one vector per token.
CASES: dict[str, tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]] = {
    "mean": (Mean(dim=DIM), lambda module, rows: sum(rows) / len(rows)),
    "max": (Max(dim=DIM), lambda module, rows: torch.stack([rows[:, d].max() for d in range(DIM)])),
    "attention": (AttentionPooling(dim=DIM, attention_dim=4), _attention),
    "bilstm": (BiLstm(dim=DIM, hidden_dim=5), lambda module, rows: _states(module, rows).amax(0)),
    "states": (BiLstmStates(dim=DIM, hidden_dim=5), _states),
}


@pytest.mark.parametrize("name", CASES)
def test_packed_equals_one_by_one_in_values_and_gradients(name: str) -> None:
    module, slow = CASES[name]
    packed, single = _hidden(), _hidden()
    ours = module(packed, LENGTHS)
    theirs = torch.cat([slow(module, rows).view(-1, module.output_dim) for rows in single.split(LENGTHS.tolist())])
    assert ours.shape == (int(LENGTHS.sum()) if name == "states" else len(LENGTHS), module.output_dim)
    assert module.tokens == "all"
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(packed.grad, single.grad)


def test_attention_pooling_survives_large_scores() -> None:
    module = AttentionPooling(dim=DIM, attention_dim=4)
    nn.init.constant_(module.score.weight, 1e4)
    assert torch.isfinite(module(_hidden(), LENGTHS)).all()


@pytest.mark.parametrize("module", [OneToken(dim=DIM, which="last"), EveryToken(dim=DIM)])
def test_what_composes_nothing_passes_its_rows_on(module: OneToken | EveryToken) -> None:
    rows = torch.randn(5, DIM, dtype=torch.bfloat16)
    torch.testing.assert_close(module(rows, LENGTHS), rows.float(), rtol=0, atol=0)
    assert (module.tokens, module.output_dim) == ("last" if isinstance(module, OneToken) else "all", DIM)


def test_time_major_order_is_that_of_pack_sequence() -> None:
    rows = torch.arange(int(LENGTHS.sum()))
    expected = nn.utils.rnn.pack_sequence(list(rows.split(LENGTHS.tolist())), enforce_sorted=False)
    order, batch_sizes = time_major_order(LENGTHS)
    assert batch_sizes.tolist() == expected.batch_sizes.tolist()
    steps = torch.from_numpy(order).split(batch_sizes.tolist())
    for ours, theirs in zip(steps, expected.data.split(batch_sizes.tolist()), strict=True):
        assert sorted(ours.tolist()) == sorted(theirs.tolist())


@pytest.mark.parametrize("name", ["bilstm", "states"])
def test_an_lstm_stays_in_float32_under_autocast(name: str) -> None:
    module, _ = CASES[name]
    plain = module(_hidden(), LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(_hidden(), LENGTHS), plain, rtol=0, atol=0)
