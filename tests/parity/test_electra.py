"""Our ELECTRA against transformers' with random weights: packed and of mixed lengths here, padded there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.peer_tensors import to_ours

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.families.electra import DISCRIMINATOR_HEAD, ELECTRA, ELECTRA_FAMILY, IGNORED
from lmtransfer.interop.families.key_map import to_theirs
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.electra import ElectraEncoder
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection

transformers = pytest.importorskip("transformers")

LENGTHS = [9, 30, 2, 30, 4, 18]
VOCABULARY, EMBEDDING, WIDTH = 157, 24, 48

#: The generator's head, which is published as one of ``mlm``, where the objective has it.
GENERATOR_HEAD = [
    replace(rewrite, ours=rewrite.ours.replace("mlm.", "rtd.generator_head."))
    for head in ELECTRA_FAMILY.heads
    for rewrite in head.key_map
    if head.loss == "mlm"
]


def _peer(kind: str, *, width: int, heads: int, hidden: int, embedding: int = EMBEDDING) -> torch.nn.Module:
    torch.manual_seed(width)
    config = transformers.ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=embedding,
        hidden_size=width,
        num_hidden_layers=3,
        num_attention_heads=heads,
        intermediate_size=hidden,
        max_position_embeddings=32,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    peer = getattr(transformers, kind)(config).eval()
    for parameter in peer.parameters():  # biases and norms too, so that nothing is hidden by zeros and ones
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return peer


def _parts(published: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    body = {name.removeprefix("electra."): tensor for name, tensor in published.items() if name.startswith("electra.")}
    return body, {name: tensor for name, tensor in published.items() if not name.startswith("electra.")}


def _encoder(embedding: int = EMBEDDING) -> ElectraEncoder:
    return ElectraEncoder(
        vocab_size=VOCABULARY,
        embedding_dim=embedding,
        dim=WIDTH,
        num_layers=3,
        num_heads=4,
        hidden_dim=96,
        max_length=32,
    ).eval()


def _peers() -> tuple[torch.nn.Module, torch.nn.Module]:
    """A discriminator and a generator of a quarter of its width with the same embeddings."""
    discriminator = _peer("ElectraForPreTraining", width=WIDTH, heads=4, hidden=96)
    generator = _peer("ElectraForMaskedLM", width=WIDTH // 4, heads=1, hidden=24)
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    assert generator.generator_lm_head.weight is generator.electra.embeddings.word_embeddings.weight
    return discriminator, generator


def _learner(discriminator: torch.nn.Module, generator: torch.nn.Module) -> PretrainingLearner:
    learner = PretrainingLearner(_encoder(), [ReplacedTokenDetection(generator_size=0.25)]).eval()
    body, head = _parts(discriminator.state_dict())
    learner.encoder.load_state_dict(to_ours(body, ELECTRA, ignore=IGNORED))
    heads = to_ours(head, DISCRIMINATOR_HEAD)
    body, head = _parts(generator.state_dict())
    heads |= to_ours(head, GENERATOR_HEAD, ignore=["generator_lm_head.weight"])
    own = to_ours(body, ELECTRA, ignore=IGNORED)
    heads |= {f"rtd.generator.{name}": tensor for name, tensor in own.items() if not name.startswith("embeddings.")}
    learner.objectives.load_state_dict(heads)
    return learner


def _padded(flat_T: torch.Tensor, fill: int = 0) -> torch.Tensor:
    padded = torch.full((len(LENGTHS), max(LENGTHS)), fill, dtype=flat_T.dtype)
    for row, part in enumerate(flat_T.split(LENGTHS)):
        padded[row, : len(part)] = part
    return padded


def _inputs(packed: PackedBatch) -> dict[str, torch.Tensor]:
    return {
        "input_ids": _padded(packed.tokens_T),
        "token_type_ids": _padded(packed.segments_T),
        "attention_mask": _padded(torch.ones_like(packed.tokens_T)),
    }


def _packed() -> PackedBatch:
    rng = np.random.default_rng(1)
    tokens = [rng.integers(4, VOCABULARY, n) for n in LENGTHS]
    return pack(tokens, [(np.arange(n) >= n // 2).astype(np.int64) for n in LENGTHS])


def _batch() -> PretrainingBatch:
    packed = _packed()
    starts = np.cumsum([0, *LENGTHS[:-1]])
    rng = np.random.default_rng(2)
    positions = np.sort(
        np.concatenate([s + 1 + rng.permutation(n - 1)[: n // 4] for s, n in zip(starts, LENGTHS, strict=True)])
    )
    index = torch.from_numpy(positions)
    masked = packed.tokens_T.clone()
    masked[index] = 3
    return PretrainingBatch(
        original=packed,
        inputs=packed.with_tokens(masked),
        positions_M=index,
        targets_M=packed.tokens_T[index],
        weights_M=torch.ones(len(index)),
        uniform_M=torch.rand(len(index)),
        num_targets=len(index),
        labels={},
        output_positions=OutputPositions.of(positions, packed.cu_seqlens.numpy()),
        read_index={"masked": None},
        keys=tuple(str(i) for i in range(len(LENGTHS))),
    )


@pytest.mark.parametrize("embedding", [EMBEDDING, WIDTH])
def test_hidden_states_equal_the_peers(embedding: int) -> None:
    peer = _peer("ElectraModel", width=WIDTH, heads=4, hidden=96, embedding=embedding)
    encoder = _encoder(embedding)
    encoder.load_state_dict(to_ours(peer.state_dict(), ELECTRA, ignore=IGNORED))
    packed = _packed()
    padded = _inputs(packed)
    with torch.no_grad():
        theirs, ours = peer(**padded, output_hidden_states=True), encoder(packed)
    real = padded["attention_mask"].bool()
    assert len(ours.layers) == len(theirs.hidden_states) == 4
    for local, their in zip(ours.layers, theirs.hidden_states, strict=True):
        torch.testing.assert_close(local, their[real], atol=1e-5, rtol=1e-5)
    assert encoder.embeddings.token.embedding_dim == embedding


def _losses_of_both() -> tuple[PretrainingLearner, dict[str, Any], tuple[Any, Any], tuple[Any, Any]]:
    peers = _peers()
    learner = _learner(*peers).double()
    for peer in peers:
        peer.double()
    batch, read = _batch(), []
    learner.encoder.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    losses, _ = learner.losses(batch)
    (seen,) = read  # what the discriminator was given: the text with samples in it
    labels = torch.full_like(batch.original.tokens_T, -100)
    labels[batch.positions_M] = batch.targets_M
    replaced = (seen.tokens_T != batch.original.tokens_T).long()
    assert 0 < replaced.sum() <= batch.num_targets
    theirs = (
        peers[0](**_inputs(seen), labels=_padded(replaced)),
        peers[1](**_inputs(batch.inputs), labels=_padded(labels, fill=-100)),
    )
    return learner, losses, peers, theirs


def test_losses_of_discriminator_and_generator_equal_the_peers() -> None:
    _, losses, _, (discriminator, generator) = _losses_of_both()
    for name, theirs in (("rtd", discriminator.loss), ("generator_mlm", generator.loss)):
        ours = losses[name].sum / losses[name].count
        torch.testing.assert_close(ours, theirs.double(), atol=1e-6, rtol=1e-6)  # their labels make theirs float32


def test_gradients_equal_the_peers_those_of_the_shared_embeddings_being_the_sum_of_both() -> None:
    learner, losses, peers, theirs = _losses_of_both()
    (losses["generator_mlm"].sum / losses["generator_mlm"].count).backward(retain_graph=True)
    (50 * losses["rtd"].sum / losses["rtd"].count).backward()
    (50 * theirs[0].loss).backward()
    theirs[1].loss.backward()
    expected: dict[str, torch.Tensor] = {}
    for peer, head, prefix in zip(
        peers, (DISCRIMINATOR_HEAD, GENERATOR_HEAD), ("encoder", "objectives.rtd.generator"), strict=True
    ):
        body, heads = _parts({name: p.grad for name, p in peer.named_parameters() if p.grad is not None})
        for name, gradient in to_ours(body, ELECTRA).items():
            key = f"encoder.{name}" if name.startswith("embeddings.") else f"{prefix}.{name}"
            expected[key] = expected[key] + gradient if key in expected else gradient
        expected |= {f"objectives.{name}": gradient for name, gradient in to_ours(heads, head).items()}
    ours = {name: parameter.grad for name, parameter in learner.named_parameters()}
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, expected[name], atol=1e-7, rtol=1e-6)


def test_packed_equals_one_by_one_and_nothing_leaks() -> None:
    encoder, packed = _encoder(), _packed()
    with torch.no_grad():
        states = encoder(packed).last.split(LENGTHS)
        edited = packed.tokens_T.clone()
        edited[: LENGTHS[0]] = 5
        changed = encoder(packed.with_tokens(edited)).last.split(LENGTHS)
        tokens, segments = packed.tokens_T.split(LENGTHS), packed.segments_T.split(LENGTHS)
        for row, (ids, segment) in enumerate(zip(tokens, segments, strict=True)):
            alone = encoder(pack([ids.numpy()], [segment.numpy()])).last
            torch.testing.assert_close(alone, states[row], atol=1e-5, rtol=1e-5)
    assert not torch.equal(changed[0], states[0])
    assert all(torch.equal(after, before) for after, before in zip(changed[1:], states[1:], strict=True))


def test_key_maps_are_reversible() -> None:
    for peer, head in zip(_peers(), (DISCRIMINATOR_HEAD, GENERATOR_HEAD), strict=True):
        body, heads = _parts(peer.state_dict())
        heads.pop("generator_lm_head.weight", None)
        for published, key_map in ((body, ELECTRA), (heads, head)):
            back = to_theirs(to_ours(published, key_map), key_map)
            assert back.keys() == published.keys()
            assert all(torch.equal(back[name], published[name]) for name in published)
