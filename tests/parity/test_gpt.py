"""Our GPT against transformers' GPT-2 with random weights, and its causality."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.peer_tensors import to_ours

from lmtransfer.data.batch import pack
from lmtransfer.interop.families.gpt import GPT2, IGNORED
from lmtransfer.interop.families.key_map import to_theirs
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.gpt import GptEncoder

transformers = pytest.importorskip("transformers")

LENGTHS = [9, 33, 1, 12, 12, 40]


def _pair() -> tuple[torch.nn.Module, GptEncoder]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=173, n_positions=40, n_embd=48, n_layer=3, n_head=4, n_inner=96, initializer_range=0.1
    )
    peer = transformers.GPT2Model(config).eval()
    for parameter in peer.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    ours = GptEncoder(vocab_size=173, dim=48, num_layers=3, num_heads=4, hidden_dim=96, max_length=40).eval()
    ours.load_state_dict(to_ours(peer.state_dict(), GPT2, ignore=IGNORED))
    return peer, ours


def test_hidden_states_equal_the_peers() -> None:
    peer, ours = _pair()
    rng = np.random.default_rng(1)
    tokens = [rng.integers(0, 173, n) for n in LENGTHS]
    batch = pack(tokens)
    with torch.no_grad():
        packed = ours(batch)
        for index, ids in enumerate(tokens):
            theirs = peer(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
            for local, their in zip(packed.layers, theirs, strict=True):
                torch.testing.assert_close(local.split(LENGTHS)[index], their[0], atol=1e-5, rtol=1e-5)
        output_positions = OutputPositions.of(np.array([0, 8, 20, 60, 106]), batch.cu_seqlens.numpy())
        torch.testing.assert_close(
            ours(batch, output_positions=output_positions).last, packed.last[output_positions.positions_N]
        )


def test_no_token_sees_what_comes_after() -> None:
    _, ours = _pair()
    tokens = np.random.default_rng(3).integers(0, 173, 20)
    edited = tokens.copy()
    edited[11:] = (edited[11:] + 5) % 173
    with torch.no_grad():
        before, after = ours(pack([tokens])).last, ours(pack([edited])).last
    assert torch.equal(before[:11], after[:11])
    assert not torch.equal(before[11], after[11])


def test_key_map_is_reversible() -> None:
    peer, _ = _pair()
    published = peer.state_dict()
    back = to_theirs(to_ours(published, GPT2, ignore=IGNORED), GPT2)
    assert back.keys() == published.keys()
    assert all(torch.equal(back[name], published[name]) for name in published)
