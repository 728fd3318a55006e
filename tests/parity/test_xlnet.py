"""XLNet against transformers with random weights: with two streams, with segments and with a memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.families.family import to_ours
from lmtransfer.interop.families.xlnet import XLNET
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.xlnet import XlnetEncoder

transformers = pytest.importorskip("transformers")

LENGTHS = [9, 26, 2, 14, 14, 30]
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def _pair() -> tuple[Any, XlnetEncoder]:
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=131, d_model=48, n_layer=3, n_head=4, d_inner=96, mem_len=11, dropout=0.0
    )
    peer = transformers.XLNetLMHeadModel(config).eval()
    for parameter in peer.parameters():  # including biases and norms, so that zeros and ones hide nothing
        parameter.data.add_(0.15 * torch.randn_like(parameter))
    ours = XlnetEncoder(
        vocab_size=131,
        dim=48,
        num_layers=3,
        num_heads=4,
        hidden_dim=96,
        max_length=30,
        memory_length=11,
    ).eval()
    ours.load_state_dict(to_ours(peer.transformer.state_dict(), XLNET))
    return peer, ours


def _tokens(seed: int, lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 131, n) for n in lengths]


def _segments(lengths: list[int]) -> list[np.ndarray]:
    return [(np.arange(n) >= n // 2).astype(np.int64) for n in lengths]


def _row(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids)[None]


@pytest.mark.parametrize("lengths", [[16, 16, 16], LENGTHS])
def test_a_second_window_with_memory_equals_the_peers(lengths: list[int]) -> None:
    peer, ours = _pair()
    first, second = _tokens(2, [16] * len(lengths)), _tokens(3, lengths)
    segments = _segments(lengths)
    with torch.no_grad():
        memory = ours(pack(first)).recurrent_state
        assert [tuple(rows.shape) for rows in memory] == [(len(lengths), 11, 48)] * 3
        packed = ours(pack(second, segments), recurrent_state=memory)
        for index in range(len(lengths)):
            mems = peer.transformer(_row(first[index]), use_mems=True).mems
            kwargs = {"token_type_ids": _row(segments[index]), "mems": mems, "use_mems": True}
            theirs = peer.transformer(_row(second[index]), output_hidden_states=True, **kwargs)
            for local, their in zip(packed.layers, theirs.hidden_states, strict=True):
                torch.testing.assert_close(local.split(lengths)[index], their[0], **CLOSE)
            if len(set(lengths)) == 1:
                for local, their in zip(packed.recurrent_state, theirs.mems, strict=True):
                    torch.testing.assert_close(local[index], their[:, 0], **CLOSE)


def _orders(lengths: list[int]) -> list[np.ndarray]:
    """Number about a third of each row's tokens in random order, from 1; the others are 0."""
    rng = np.random.default_rng(4)
    orders = []
    for length in lengths:
        size = max(1, length // 3)
        order = np.zeros(length, dtype=np.int64)
        order[rng.permutation(length)[:size]] = np.arange(size) + 1
        orders.append(order)
    return orders


def _reads(orders: list[np.ndarray], batch: PackedBatch) -> OutputPositions:
    return OutputPositions.of(np.flatnonzero(np.concatenate(orders)), batch.cu_seqlens.numpy())


def _peers_masks(order: np.ndarray) -> dict[str, Tensor]:
    """The peer's arguments: perm_mask[i, j] = 1 where i does not see j, and the positions to predict."""
    hides = torch.zeros(len(order), len(order))
    for i in range(len(order)):
        for j in range(len(order)):
            if order[j] and (not order[i] or order[j] >= order[i]):
                hides[i, j] = 1.0
    targets = np.flatnonzero(order)
    mapping = torch.zeros(len(targets), len(order))
    mapping[torch.arange(len(targets)), torch.from_numpy(targets)] = 1.0
    return {"perm_mask": hides[None], "target_mapping": mapping[None]}


@pytest.mark.parametrize("with_memory", [False, True])
def test_both_streams_and_the_loss_equal_the_peers(with_memory: bool) -> None:
    peer, ours = _pair()
    tokens, segments, orders = _tokens(5, LENGTHS), _segments(LENGTHS), _orders(LENGTHS)
    before = _tokens(6, [13] * len(LENGTHS))
    batch = pack(tokens, segments)
    output_positions = _reads(orders, batch)
    targets = [torch.from_numpy(ids[order > 0]) for ids, order in zip(tokens, orders, strict=True)]
    with torch.no_grad():
        memory = ours(pack(before)).recurrent_state if with_memory else None
        packed = ours.two_stream(
            batch,
            order_T=torch.from_numpy(np.concatenate(orders)),
            output_positions=output_positions,
            recurrent_state=memory,
        )
        for index, (ids, segment, order) in enumerate(zip(tokens, segments, orders, strict=True)):
            mems = peer.transformer(_row(before[index]), use_mems=True).mems if with_memory else None
            theirs = peer(
                _row(ids),
                token_type_ids=_row(segment),
                mems=mems,
                use_mems=with_memory,
                labels=targets[index][None],
                output_hidden_states=True,
                **_peers_masks(order),
            )
            contents, queries = theirs.hidden_states[::2], theirs.hidden_states[1::2]
            for local, their in zip(packed.layers[:-1], contents[:-1], strict=True):
                torch.testing.assert_close(local.split(LENGTHS)[index], their[0], **CLOSE)
            local = packed.last.split(list(output_positions.counts))[index]
            torch.testing.assert_close(local, queries[-1][0], **CLOSE)
            logits = local @ ours.token_embedding.weight.T + peer.lm_loss.bias
            loss = torch.nn.functional.cross_entropy(logits, targets[index])
            torch.testing.assert_close(loss, theirs.loss, **CLOSE)


def test_gradients_of_two_streams_equal_the_peers() -> None:
    peer, ours = _pair()
    (tokens,), (segments,), (order,) = _tokens(7, [17]), _segments([17]), _orders([17])
    batch = pack([tokens], [segments])
    weights = torch.randn(len(np.flatnonzero(order)), 48)
    output_positions = _reads([order], batch)
    (
        ours.two_stream(batch, order_T=torch.from_numpy(order), output_positions=output_positions).last * weights
    ).sum().backward()
    theirs = peer.transformer(_row(tokens), token_type_ids=_row(segments), **_peers_masks(order))
    (theirs.last_hidden_state[0] * weights).sum().backward()
    expected = {name: parameter.grad for name, parameter in peer.transformer.named_parameters()}
    for name, gradient in to_ours(expected, XLNET).items():
        local = ours.get_parameter(name).grad
        assert local is not None
        torch.testing.assert_close(local, gradient, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
