"""Our MLM and NSP losses and gradients against transformers' BertForPreTraining with random weights, padded there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.peer_tensors import heads_to_ours, to_ours

from lmtransfer.data.batch import pack
from lmtransfer.interop.families.bert import BERT, BERT_FAMILY, IGNORED
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.bert import BertEncoder
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction

transformers = pytest.importorskip("transformers")

LENGTHS, VOCABULARY, WIDTH = [9, 30, 30, 4, 18], 157, 48


def _peer() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        initializer_range=0.1,
    )
    peer = transformers.BertForPreTraining(config).eval()
    for parameter in peer.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return peer


def _learner(peer: torch.nn.Module) -> PretrainingLearner:
    encoder = BertEncoder(vocab_size=VOCABULARY, dim=WIDTH, num_layers=2, num_heads=4, hidden_dim=96, max_length=32)
    learner = PretrainingLearner(encoder, [MaskedLanguageModel(), NextSentencePrediction()]).eval()
    published = peer.state_dict()
    body = {name.removeprefix("bert."): tensor for name, tensor in published.items() if name.startswith("bert.")}
    heads = {name: tensor for name, tensor in published.items() if not name.startswith("bert.")}
    encoder.load_state_dict(to_ours(body, BERT, ignore=IGNORED))
    learner.objectives.load_state_dict(heads_to_ours(heads, BERT_FAMILY))
    return learner


def _batch() -> tuple[PretrainingBatch, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(1)
    tokens = [rng.integers(0, VOCABULARY, n) for n in LENGTHS]
    segments = [(np.arange(n) >= n // 3).astype(np.int64) for n in LENGTHS]
    packed = pack(tokens, segments)
    starts = np.cumsum([0, *LENGTHS[:-1]])
    positions = np.sort(
        np.concatenate([start + 1 + rng.permutation(n - 1)[:3] for start, n in zip(starts, LENGTHS, strict=True)])
    )
    targets, labels = rng.integers(0, VOCABULARY, len(positions)), rng.integers(0, 2, len(LENGTHS))
    union = np.union1d(positions, starts)
    batch = PretrainingBatch(
        original=packed,
        inputs=packed,
        positions_M=torch.from_numpy(positions),
        targets_M=torch.from_numpy(targets),
        weights_M=torch.ones(len(positions)),
        uniform_M=torch.zeros(len(positions)),
        num_targets=len(positions),
        labels={"nsp": torch.from_numpy(labels)},
        output_positions=OutputPositions.of(union, packed.cu_seqlens.numpy()),
        read_index={
            "masked": torch.from_numpy(union.searchsorted(positions)),
            "starts": torch.from_numpy(union.searchsorted(starts)),
        },
        keys=tuple(str(i) for i in range(len(LENGTHS))),
    )
    shape = (len(LENGTHS), max(LENGTHS))
    padded = {name: torch.zeros(shape, dtype=torch.long) for name in ("input_ids", "token_type_ids", "attention_mask")}
    padded["labels"] = torch.full(shape, -100)
    flat = torch.full((sum(LENGTHS),), -100)
    flat[batch.positions_M] = batch.targets_M
    for row, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
        padded["input_ids"][row, :length] = torch.from_numpy(tokens[row])
        padded["token_type_ids"][row, :length] = torch.from_numpy(segments[row])
        padded["attention_mask"][row, :length] = 1
        padded["labels"][row, :length] = flat[start : start + length]
    padded["next_sentence_label"] = batch.labels["nsp"]
    return batch, padded


def test_losses_equal_the_peers() -> None:
    peer = _peer()
    batch, padded = _batch()
    losses, _ = _learner(peer).losses(batch)
    theirs = peer(**padded)
    cross_entropy = torch.nn.functional.cross_entropy
    mlm = cross_entropy(theirs.prediction_logits.flatten(0, 1), padded["labels"].flatten())
    nsp = cross_entropy(theirs.seq_relationship_logits, padded["next_sentence_label"])
    torch.testing.assert_close(losses["mlm"].sum / losses["mlm"].count, mlm, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(losses["nsp"].sum / losses["nsp"].count, nsp, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(theirs.loss, mlm + nsp)


def test_gradients_equal_the_peers_tied_embedding_included() -> None:
    peer = _peer().double()
    learner = _learner(peer.float()).double()
    peer.double()
    batch, padded = _batch()
    losses, _ = learner.losses(batch)
    (losses["mlm"].sum / losses["mlm"].count + losses["nsp"].sum / losses["nsp"].count).backward()
    peer(**padded).loss.backward()
    published = {name: parameter.grad for name, parameter in peer.named_parameters()}
    body = {name.removeprefix("bert."): grad for name, grad in published.items() if name.startswith("bert.")}
    heads = {name: grad for name, grad in published.items() if not name.startswith("bert.")}
    theirs = {f"encoder.{name}": grad for name, grad in to_ours(body, BERT, ignore=IGNORED).items()}
    mapped = heads_to_ours(heads, BERT_FAMILY)
    theirs |= {f"objectives.{name}": grad for name, grad in mapped.items()}
    ours = {name: parameter.grad for name, parameter in learner.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, theirs[name], atol=1e-7, rtol=1e-5)
