"""Batches that workers send: the same numbers, without shared memory."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from lmtransfer.data.stream.stream import Sent, received


@dataclass(frozen=True, slots=True)
class _Batch:
    tokens: torch.Tensor
    again: torch.Tensor
    view: torch.Tensor
    half: torch.Tensor
    rounded: torch.Tensor
    none: torch.Tensor
    array: np.ndarray
    names: tuple[str, ...]


def _batch() -> _Batch:
    torch.manual_seed(0)
    tokens, large = torch.randint(9, (4, 3)), torch.randn(1000, 7)
    return _Batch(
        tokens, tokens, large[:, 2][:5], tokens.half(), tokens.bfloat16(), tokens[:0], np.arange(3), ("a", "b")
    )


def test_a_batch_arrives_as_it_was_sent() -> None:
    batch = _batch()
    arrived = pickle.loads(pickle.dumps(Sent(batch))).batch()
    for name in ("tokens", "view", "half", "rounded", "none"):
        before, after = getattr(batch, name), getattr(arrived, name)
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    assert arrived.again is arrived.tokens
    arrived.tokens.add_(1)  # it may be written to
    assert np.array_equal(arrived.array, batch.array)
    assert arrived.names == batch.names
    assert received(batch) is batch
    assert torch.equal(received(Sent(batch)).tokens, batch.tokens)


def test_only_the_numbers_of_a_view_are_sent() -> None:
    large = torch.randn(1000, 1000)
    assert len(pickle.dumps(Sent(large[3]))) < 2 * 4 * 1000


def test_no_tensor_goes_through_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> None:
        raise OSError("no space in shared memory")

    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, refuse)
    batch = torch.arange(6)
    with pytest.raises(OSError, match="shared memory"):
        ForkingPickler.dumps(batch)
    assert torch.equal(pickle.loads(ForkingPickler.dumps(Sent(batch))).batch(), batch)


def test_it_is_pinned_as_a_batch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)
    assert received(Sent(torch.arange(3)).pin_memory()).tolist() == [100, 101, 102]
