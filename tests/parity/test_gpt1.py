"""Our post-norm GPT against transformers' first GPT with random weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.peer_tensors import to_ours

from lmtransfer.data.batch import pack
from lmtransfer.interop.families.gpt import GPT, IGNORED
from lmtransfer.interop.families.key_map import to_theirs
from lmtransfer.models.gpt import GptEncoder

transformers = pytest.importorskip("transformers")

LENGTHS = [9, 33, 1, 12, 12, 40]


def _pair() -> tuple[torch.nn.Module, GptEncoder]:
    torch.manual_seed(0)
    config = transformers.OpenAIGPTConfig(
        vocab_size=173, n_positions=40, n_embd=48, n_layer=3, n_head=4, initializer_range=0.1
    )
    peer = transformers.OpenAIGPTModel(config).eval()
    for parameter in peer.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    ours = GptEncoder(
        vocab_size=173, dim=48, num_layers=3, num_heads=4, hidden_dim=192, max_length=40, norm="post"
    ).eval()
    ours.load_state_dict(to_ours(peer.state_dict(), GPT, ignore=IGNORED))
    return peer, ours


def test_hidden_states_and_gradients_equal_the_peers() -> None:
    peer, ours = _pair()
    rng = np.random.default_rng(1)
    tokens = [rng.integers(0, 173, n) for n in LENGTHS]
    packed = ours(pack(tokens))
    weights = torch.randn(sum(LENGTHS), 48)
    (packed.last * weights).sum().backward()
    for index, ids in enumerate(tokens):
        theirs = peer(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
        assert len(theirs) == 4
        for local, their in zip(packed.layers, theirs, strict=True):
            torch.testing.assert_close(local.split(LENGTHS)[index], their[0], atol=1e-5, rtol=1e-5)
        (theirs[-1][0] * weights.split(LENGTHS)[index]).sum().backward()
    gradients = to_ours({name: p.grad for name, p in peer.named_parameters()}, GPT)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=2e-4, rtol=1e-4)


def test_key_map_is_reversible() -> None:
    peer, _ = _pair()
    published = peer.state_dict()
    back = to_theirs(to_ours(published, GPT, ignore=IGNORED), GPT)
    assert all(torch.equal(back[name], published[name]) for name in back)
    assert not {name for name in published if name not in back and "bias" not in name.split(".")[-1]}
