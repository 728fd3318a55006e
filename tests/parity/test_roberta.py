"""Our RoBERTa against transformers' with random weights: packed and of mixed lengths here, padded there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.peer_tensors import heads_to_ours, to_ours

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.families.key_map import Rewrite, to_theirs
from lmtransfer.interop.families.roberta import (
    IGNORED,
    ROBERTA,
    ROBERTA_FAMILY,
    ROBERTA_PRE_NORM,
    add_published_tables,
)
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.roberta import RobertaEncoder
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel

transformers = pytest.importorskip("transformers")

LENGTHS, VOCABULARY, PAD = [7, 31, 1, 16, 16, 40, 2], 211, 1
NAMES = {"post": "Roberta", "pre": "RobertaPreLayerNorm"}
NOT_OURS = (*IGNORED, r"pooler\..*")  # which pretraining does not train
KEY_MAPS: dict[str, list[Rewrite]] = {"post": ROBERTA, "pre": ROBERTA_PRE_NORM}


def _peer(norm: str, kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{NAMES[norm]}Config")(
        vocab_size=VOCABULARY,
        max_position_embeddings=42,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        type_vocab_size=1,
        pad_token_id=PAD,
        layer_norm_eps=1e-5,
        initializer_range=0.1,
    )
    peer = getattr(transformers, f"{NAMES[norm]}{kind}")(config).eval()
    for parameter in peer.parameters():  # biases and norms too, so that nothing is hidden by zeros and ones
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return peer


def _encoder(norm: str, *, published: bool = True) -> RobertaEncoder:
    return RobertaEncoder(
        vocab_size=VOCABULARY,
        dim=48,
        num_layers=3,
        num_heads=4,
        hidden_dim=96,
        max_length=40,
        norm=norm,  # type: ignore[arg-type]
        positions_from_two=published,
        type_row=published,
    ).eval()


def _inputs() -> tuple[PackedBatch, dict[str, torch.Tensor]]:
    rng = np.random.default_rng(1)
    tokens = [rng.integers(PAD + 1, VOCABULARY, n) for n in LENGTHS]
    padded = torch.full((len(LENGTHS), max(LENGTHS)), PAD)
    for row, ids in enumerate(tokens):
        padded[row, : len(ids)] = torch.from_numpy(ids)
    return pack(tokens), {"input_ids": padded, "attention_mask": (padded != PAD).long()}


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_hidden_states_equal_the_peers(norm: str) -> None:
    peer, encoder = _peer(norm, "Model"), _encoder(norm)
    encoder.load_state_dict(to_ours(peer.state_dict(), KEY_MAPS[norm], ignore=NOT_OURS))
    batch, padded = _inputs()
    with torch.no_grad():
        theirs = peer(**padded, output_hidden_states=True)
        ours = encoder(batch)
    real = padded["attention_mask"].bool()
    layers = [*theirs.hidden_states[:-1], theirs.last_hidden_state]
    assert len(ours.layers) == len(layers) == 4
    for local, their in zip(ours.layers, layers, strict=True):
        torch.testing.assert_close(local, their[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_without_the_published_tables_computes_the_same_as_a_peer_made_of_it(norm: str) -> None:
    peer, encoder = _peer(norm, "Model"), _encoder(norm, published=False)
    published = add_published_tables(to_theirs(encoder.state_dict(), KEY_MAPS[norm]))
    missing, unexpected = peer.load_state_dict(published, strict=False)
    assert not unexpected
    assert all(name.startswith("pooler.") for name in missing)
    batch, padded = _inputs()
    with torch.no_grad():
        theirs = peer(**padded).last_hidden_state[padded["attention_mask"].bool()]
        torch.testing.assert_close(encoder(batch).last, theirs, atol=1e-5, rtol=1e-5)


def test_key_map_is_reversible_to_the_byte() -> None:
    published = {k: v for k, v in _peer("post", "Model").state_dict().items() if not k.startswith("pooler.")}
    back = to_theirs(to_ours(published, ROBERTA), ROBERTA)
    assert back.keys() == published.keys()
    assert all(torch.equal(back[name], published[name]) for name in published)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loss_and_gradients_of_masked_tokens_equal_the_peers(norm: str) -> None:
    peer = _peer(norm, "ForMaskedLM")
    learner = PretrainingLearner(_encoder(norm), [MaskedLanguageModel(norm_eps=1e-5)]).eval()
    prefix = "roberta." if norm == "post" else "roberta_prelayernorm."

    def ours_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        body = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        head = {name: t for name, t in tensors.items() if not name.startswith(prefix)}
        mapped = {f"encoder.{n}": t for n, t in to_ours(body, KEY_MAPS[norm], ignore=NOT_OURS).items()}
        return mapped | {f"objectives.{n}": t for n, t in heads_to_ours(head, ROBERTA_FAMILY).items()}

    learner.load_state_dict(ours_of(peer.state_dict()))
    packed, padded = _inputs()
    rng = np.random.default_rng(2)
    positions = np.sort(rng.permutation(sum(LENGTHS))[:30])
    targets = torch.from_numpy(rng.integers(0, VOCABULARY, 30))
    batch = PretrainingBatch(
        original=packed,
        inputs=packed,
        positions_M=torch.from_numpy(positions),
        targets_M=targets,
        weights_M=torch.ones(30),
        uniform_M=torch.zeros(30),
        num_targets=30,
        labels={},
        output_positions=OutputPositions.of(positions, packed.cu_seqlens.numpy()),
        read_index={"masked": None},
        keys=tuple(str(i) for i in range(len(LENGTHS))),
    )
    flat = torch.full((sum(LENGTHS),), -100)
    flat[positions] = targets
    labels = torch.full(padded["input_ids"].shape, -100)
    labels[padded["attention_mask"].bool()] = flat
    losses, _ = learner.losses(batch)
    ours, theirs = losses["mlm"].sum / losses["mlm"].count, peer(**padded, labels=labels).loss
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    ours.backward()
    theirs.backward()
    gradients = ours_of({name: p.grad for name, p in peer.named_parameters() if p.grad is not None})
    for name, parameter in learner.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, gradients[name], atol=2e-5, rtol=1e-4)
