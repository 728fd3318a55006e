"""What stands between an encoder and a head that asks about tokens, against one sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from lmtransfer.transfer.pooling import BiLstmStates, EveryToken

LENGTHS = torch.tensor([3, 1, 7, 4, 7])
DIM = 6


def _hidden() -> Tensor:
    return torch.randn(int(LENGTHS.sum()), DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_every_token_passes_them_on() -> None:
    module = EveryToken(dim=DIM)
    assert (module.tokens, module.output_dim, list(module.parameters())) == ("all", DIM, [])
    half = _hidden().bfloat16()
    torch.testing.assert_close(module(half, LENGTHS), half.float(), rtol=0, atol=0)


def test_states_are_those_of_each_sequence_alone_in_values_and_gradients() -> None:
    torch.manual_seed(0)
    module = BiLstmStates(dim=DIM, hidden_dim=5)
    packed, single = _hidden(), _hidden()
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
    plain = module(_hidden(), LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module(_hidden(), LENGTHS), plain, rtol=0, atol=0)
