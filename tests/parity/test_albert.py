"""Our ALBERT against transformers' with random weights: packed and of mixed lengths here, padded there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.peer_tensors import heads_to_ours, to_ours

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.families.albert import ALBERT, ALBERT_FAMILY, IGNORED
from lmtransfer.interop.families.key_map import to_theirs
from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.models.base import OutputPositions
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import SentenceOrderPrediction
from lmtransfer.training.weights import load_weights, weights

transformers = pytest.importorskip("transformers")

LENGTHS, VOCABULARY = [7, 31, 1, 16, 16, 30, 2, 25], 211


def _peer(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=VOCABULARY,
        embedding_size=24,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=40,
        classifier_dropout_prob=0.0,
        initializer_range=0.1,
    )
    peer = getattr(transformers, f"Albert{kind}")(config).eval()
    for parameter in peer.parameters():  # biases and norms too, so that nothing is hidden by zeros and ones
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return peer


def _encoder() -> AlbertEncoder:
    return AlbertEncoder(
        vocab_size=VOCABULARY, embedding_dim=24, dim=48, num_layers=3, num_heads=4, hidden_dim=96, max_length=40
    ).eval()


def _inputs() -> tuple[PackedBatch, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(1)
    tokens = [rng.integers(0, VOCABULARY, n) for n in LENGTHS]
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


def test_hidden_states_and_pooler_equal_the_peers() -> None:
    peer, encoder = _peer("Model"), _encoder()
    load_weights(encoder, to_ours(peer.state_dict(), ALBERT, ignore=IGNORED))
    batch, padded = _inputs()
    with torch.no_grad():
        theirs = peer(**padded, output_hidden_states=True)
        ours = encoder(batch)
    real = padded["attention_mask"].bool()
    assert len(ours.layers) == len(theirs.hidden_states) == 4
    for local, their in zip(ours.layers, theirs.hidden_states, strict=True):
        torch.testing.assert_close(local, their[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(encoder.pooler(ours.last[batch.starts_B]), theirs.pooler_output, atol=1e-5, rtol=1e-5)


def test_key_map_is_reversible_to_the_byte() -> None:
    peer, encoder = _peer("Model"), _encoder()
    published = peer.state_dict()
    load_weights(encoder, to_ours(published, ALBERT, ignore=IGNORED))
    back = to_theirs(weights(encoder), ALBERT)
    assert back.keys() == published.keys()
    assert all(torch.equal(back[name], published[name]) for name in published)


def _ours_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    body = {name.removeprefix("albert."): t for name, t in tensors.items() if name.startswith("albert.")}
    heads = {name: t for name, t in tensors.items() if not name.startswith("albert.")}
    mapped = {f"encoder.{name}": t for name, t in to_ours(body, ALBERT, ignore=IGNORED).items()}
    return mapped | {f"objectives.{n}": t for n, t in heads_to_ours(heads, ALBERT_FAMILY).items()}


def test_pretraining_losses_and_gradients_equal_the_peers() -> None:
    peer = _peer("ForPreTraining")
    learner = PretrainingLearner(
        _encoder(), [MaskedLanguageModel(activation="gelu_tanh"), SentenceOrderPrediction()]
    ).eval()
    load_weights(learner, _ours_of(peer.state_dict()))
    packed, padded = _inputs()
    rng = np.random.default_rng(2)
    starts = packed.starts_B.numpy()
    positions = np.sort(rng.permutation(sum(LENGTHS))[:30])
    targets, labels = torch.from_numpy(rng.integers(0, VOCABULARY, 30)), rng.integers(0, 2, len(LENGTHS))
    union = np.union1d(positions, starts)
    batch = PretrainingBatch(
        original=packed,
        inputs=packed,
        positions_M=torch.from_numpy(positions),
        targets_M=targets,
        weights_M=torch.ones(30),
        uniform_M=torch.zeros(30),
        num_targets=30,
        labels={"sop": torch.from_numpy(labels)},
        output_positions=OutputPositions.of(union, packed.cu_seqlens.numpy()),
        read_index={
            "masked": torch.from_numpy(union.searchsorted(positions)),
            "starts": torch.from_numpy(union.searchsorted(starts)),
        },
        keys=tuple(str(i) for i in range(len(LENGTHS))),
    )
    flat = torch.full((sum(LENGTHS),), -100)
    flat[positions] = targets
    padded["labels"] = torch.full(padded["input_ids"].shape, -100)
    padded["labels"][padded["attention_mask"].bool()] = flat
    losses, _ = learner.losses(batch)
    theirs = peer(**padded, sentence_order_label=batch.labels["sop"])
    cross_entropy = torch.nn.functional.cross_entropy
    mlm = cross_entropy(theirs.prediction_logits.flatten(0, 1), padded["labels"].flatten())
    sop = cross_entropy(theirs.sop_logits, batch.labels["sop"])
    ours = {name: losses[name].sum / losses[name].count for name in ("mlm", "sop")}
    torch.testing.assert_close(ours["mlm"], mlm, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours["sop"], sop, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(theirs.loss, mlm + sop)
    (ours["mlm"] + ours["sop"]).backward()
    theirs.loss.backward()
    gradients = _ours_of({name: p.grad for name, p in peer.named_parameters() if p.grad is not None})
    compared = dict(learner.named_parameters())
    assert compared.keys() == gradients.keys()
    for name, parameter in compared.items():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, gradients[name], atol=5e-5, rtol=1e-4)
