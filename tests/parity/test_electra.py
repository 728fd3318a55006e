"""ELECTRA's two losses, on packed rows of mixed lengths, against transformers with random weights on padded rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.published_models import LENGTHS, VOCABULARY, batch_of, learner_of, padded, perturbed
from support.peer_tensors import learner_tensors
from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.interop.families.electra import ELECTRA_FAMILY
from lmtransfer.interop.reading import read_published
from lmtransfer.models.base import OutputPositions
from lmtransfer.objectives.batch import PretrainingBatch

transformers = pytest.importorskip("transformers")


def _peer(kind: str, *, width: int, heads: int) -> Any:
    config = transformers.ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=16,
        hidden_size=width,
        num_hidden_layers=3,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=32,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    return perturbed(getattr(transformers, f"Electra{kind}")(config), seed=width, by=0.05)


def _batch() -> PretrainingBatch:
    packed, rng = batch_of(segments=True), np.random.default_rng(2)
    starts = packed.starts_B.tolist()
    chosen = [s + 1 + rng.permutation(n - 1)[: n // 3] for s, n in zip(starts, LENGTHS, strict=True)]
    index = torch.from_numpy(np.sort(np.concatenate(chosen)))
    masked = packed.tokens_T.clone()
    masked[index] = 3
    return PretrainingBatch(
        original=packed,
        inputs=packed.with_tokens(masked),
        positions_M=index,
        targets_M=packed.tokens_T[index],
        weights_M=torch.ones(len(index)),
        uniform_M=torch.from_numpy(rng.random(len(index), dtype=np.float32)),
        num_targets=len(index),
        labels={},
        output_positions=OutputPositions.of(index.numpy(), packed.cu_seqlens.numpy()),
        read_index={"masked": None},
        keys=tuple(map(str, range(len(LENGTHS)))),
    )


def test_losses_and_gradients_equal_the_peers_those_of_the_shared_embeddings_being_the_sum(tmp_path: Path) -> None:
    discriminator, generator = _peer("ForPreTraining", width=48, heads=4), _peer("ForMaskedLM", width=12, heads=1)
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    discriminator.save_pretrained(tmp_path)
    generator.save_pretrained(tmp_path / "generator")
    published = read_published(tmp_path)
    assert published.losses["rtd"]["generator_size"] == 0.25
    learner = learner_of(published).double()
    discriminator.double()
    generator.double()
    batch, read = _batch(), []
    learner.encoder.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    losses, _ = learner.losses(batch)
    (seen,) = read  # the discriminator's input: the text with samples in it
    replaced = (seen.tokens_T != batch.original.tokens_T).long()
    assert 0 < replaced.sum() <= batch.num_targets
    hidden = torch.full_like(replaced, -100)
    hidden[batch.positions_M] = batch.targets_M
    theirs = {"rtd": _loss(discriminator, seen, replaced, 0), "generator_mlm": _loss(generator, batch.inputs, hidden)}
    ours = {name: losses[name].sum / losses[name].count for name in theirs}
    for name, loss in ours.items():
        torch.testing.assert_close(
            loss, theirs[name].double(), atol=1e-6, rtol=1e-6
        )  # the dtype of their labels makes this loss float32
    for both in (ours, theirs):
        (50 * both["rtd"] + both["generator_mlm"]).backward()
    expected = learner_tensors(_gradients(discriminator), ELECTRA_FAMILY)
    for name, gradient in learner_tensors(_gradients(generator), ELECTRA_FAMILY).items():
        if name.startswith("encoder.embeddings."):
            expected[name] = expected[name] + gradient
        else:
            head = name.replace("objectives.mlm.", "objectives.rtd.generator_head.")
            expected[head.replace("encoder.", "objectives.rtd.generator.")] = gradient
    found = {name: parameter.grad for name, parameter in learner.named_parameters()}
    assert found.keys() == expected.keys()
    for name, local in found.items():
        assert local is not None, name
        torch.testing.assert_close(local, expected[name], atol=1e-7, rtol=1e-6)


def _loss(peer: Any, packed: PackedBatch, labels: Tensor, fill: int = -100) -> Tensor:
    rows = padded(packed.with_tokens(labels), pad=fill)["input_ids"]
    return peer(**padded(packed), labels=rows).loss


def _gradients(peer: Any) -> dict[str, Tensor]:
    return {name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
