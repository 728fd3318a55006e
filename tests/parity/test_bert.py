"""Our BERT against transformers' with random weights: packed and of mixed lengths here, padded there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.peer_tensors import to_ours

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.families.bert import BERT, IGNORED, MEGATRON_BERT
from lmtransfer.interop.families.key_map import to_theirs
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.bert import BertEncoder

transformers = pytest.importorskip("transformers")

LENGTHS = [7, 31, 1, 16, 16, 30, 2, 25]
SHAPE = {"vocab_size": 211, "max_position_embeddings": 40, "hidden_size": 48, "num_hidden_layers": 3}
SHAPE |= {"num_attention_heads": 4, "intermediate_size": 96}


def _peer(norm: str) -> torch.nn.Module:
    torch.manual_seed(0)
    names = {"post": ("BertConfig", "BertModel"), "pre": ("MegatronBertConfig", "MegatronBertModel")}[norm]
    config = getattr(transformers, names[0])(**SHAPE, initializer_range=0.1)
    peer = getattr(transformers, names[1])(config).eval()
    for parameter in peer.parameters():  # biases and norms too, so that nothing is hidden by zeros and ones
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return peer


def _ours(peer: torch.nn.Module, norm: str) -> BertEncoder:
    encoder = BertEncoder(
        vocab_size=211,
        dim=48,
        num_layers=3,
        num_heads=4,
        hidden_dim=96,
        max_length=40,
        norm=norm,  # type: ignore[arg-type]
    ).eval()
    key_map = BERT if norm == "post" else MEGATRON_BERT
    encoder.load_state_dict(to_ours(peer.state_dict(), key_map, ignore=IGNORED))
    return encoder


def _inputs() -> tuple[PackedBatch, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(1)
    tokens = [rng.integers(0, 211, n) for n in LENGTHS]
    segments = [(np.arange(n) >= n // 2).astype(np.int64) for n in LENGTHS]
    padded = {
        k: torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
        for k in ("input_ids", "token_type_ids", "attention_mask")
    }
    for row, (ids, segment) in enumerate(zip(tokens, segments, strict=True)):
        padded["input_ids"][row, : len(ids)] = torch.from_numpy(ids)
        padded["token_type_ids"][row, : len(ids)] = torch.from_numpy(segment)
        padded["attention_mask"][row, : len(ids)] = 1
    return pack(tokens, segments), padded


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_hidden_states_and_pooler_equal_the_peers(norm: str) -> None:
    peer = _peer(norm)
    encoder = _ours(peer, norm)
    batch, padded = _inputs()
    with torch.no_grad():
        theirs = peer(**padded, output_hidden_states=True)
        ours = encoder(batch)
    real = padded["attention_mask"].bool()
    assert len(ours.layers) == len(theirs.hidden_states) == 4
    layers = list(theirs.hidden_states[:-1]) + [theirs.last_hidden_state]
    for local, their in zip(ours.layers, layers, strict=True):
        torch.testing.assert_close(local, their[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoder.pooler(ours.last[batch.starts_B]), theirs.pooler_output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_equal_the_peers(norm: str) -> None:
    peer = _peer(norm)
    encoder = _ours(peer, norm)
    batch, padded = _inputs()
    real = padded["attention_mask"].bool()
    weights = torch.randn(sum(LENGTHS), 48)
    (encoder(batch).last * weights).sum().backward()
    (peer(**padded).last_hidden_state[real] * weights).sum().backward()
    theirs = to_ours(
        {n: p.grad for n, p in peer.named_parameters() if p.grad is not None}, BERT if norm == "post" else MEGATRON_BERT
    )
    compared = 0
    for name, parameter in encoder.named_parameters():
        if parameter.grad is None:
            assert name.startswith("pooler")
            continue
        torch.testing.assert_close(parameter.grad, theirs[name], atol=2e-4, rtol=1e-4)
        compared += 1
    assert compared == len(theirs)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_reads_compute_the_same_states_and_gradients_as_everything(norm: str) -> None:
    encoder = _ours(_peer(norm), norm).double()
    batch, _ = _inputs()
    positions = np.sort(np.random.default_rng(2).permutation(sum(LENGTHS))[:37])
    output_positions = OutputPositions.of(positions, batch.cu_seqlens.numpy())
    assert 0 in output_positions.counts  # a sequence in which nothing is read
    weights = torch.randn(37, 48, dtype=torch.float64)
    gradients = []
    for last in (
        encoder(batch).last[output_positions.positions_N],
        encoder(batch, output_positions=output_positions).last,
    ):
        encoder.zero_grad()
        (last * weights).sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None] + [last.detach()])
    for whole, selected in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, selected, atol=1e-10, rtol=1e-10)


def test_packed_equals_one_by_one_and_nothing_leaks() -> None:
    encoder = _ours(_peer("post"), "post")
    batch, _ = _inputs()
    with torch.no_grad():
        packed = encoder(batch).last.split(list(batch.lengths))
        for index, (tokens, segments) in enumerate(
            zip(batch.tokens_T.split(list(batch.lengths)), batch.segments_T.split(list(batch.lengths)), strict=True)
        ):
            alone = encoder(pack([tokens.numpy()], [segments.numpy()])).last
            torch.testing.assert_close(alone, packed[index], atol=1e-5, rtol=1e-5)
        edited = batch.tokens_T.clone()
        edited[: LENGTHS[0]] = (edited[: LENGTHS[0]] + 1) % 211
        changed = encoder(batch.with_tokens(edited)).last.split(list(batch.lengths))
    assert not torch.equal(changed[0], packed[0])
    for before, after in zip(packed[1:], changed[1:], strict=True):
        assert torch.equal(before, after)


def test_key_map_is_reversible() -> None:
    for norm, key_map in (("post", BERT), ("pre", MEGATRON_BERT)):
        published = {n: t for n, t in _peer(norm).state_dict().items() if "position_ids" not in n}
        back = to_theirs(to_ours(published, key_map), key_map)
        assert back.keys() == published.keys()
        assert all(torch.equal(back[name], published[name]) for name in published)
