"""ALBERT's shared weights: which are shared, that they stay shared, and that their gradients add up."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmtransfer.data.batch import pack
from lmtransfer.models.albert import AlbertEncoder, Sharing
from lmtransfer.training.optim.optimizers import AdamW, Lamb, Muon, classify
from lmtransfer.training.weights import aliases, load_weights, weights

SHARED: dict[Sharing, set[str]] = {
    "all": {"attention", "attention_norm", "feed_forward", "feed_forward_norm"},
    "attention": {"attention", "attention_norm"},
    "ffn": {"feed_forward", "feed_forward_norm"},
    "none": set(),
}
LAYER = {"attention": 4 * 16 * 16 + 4 * 16, "attention_norm": 32, "feed_forward": 2 * 16 * 32 + 48}
LAYER["feed_forward_norm"] = 32


def albert(share: Sharing, seed: int = 0) -> AlbertEncoder:
    torch.manual_seed(seed)
    return AlbertEncoder(
        vocab_size=50, embedding_dim=8, dim=16, num_layers=3, num_heads=2, hidden_dim=32, share=share, max_length=24
    )


def batch_of(seed: int = 0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    return pack([rng.integers(0, 50, n) for n in (5, 20, 11)])


@pytest.mark.parametrize("share", SHARED)
def test_the_layers_have_exactly_these_weights_in_common(share: Sharing) -> None:
    encoder = albert(share)
    first = encoder.stack.layers[0]
    for layer in encoder.stack.layers[1:]:
        for part in LAYER:
            assert (getattr(layer, part) is getattr(first, part)) == (part in SHARED[share])
    expected = sum(size * (1 if part in SHARED[share] else 3) for part, size in LAYER.items())
    assert sum(p.numel() for p in encoder.stack.parameters()) == expected


@pytest.mark.parametrize("share", SHARED)
def test_gradients_are_the_sums_over_layers_with_equal_weights_of_their_own(share: Sharing) -> None:
    shared, apart = albert(share).double(), albert("none").double()
    apart.load_state_dict(shared.state_dict())
    for encoder in (shared, apart):
        (encoder(batch_of()).last.sin() * torch.arange(16)).sum().backward()
    of_own = {name: p.grad for name, p in apart.named_parameters()}
    same = {name: [other for other, kept in aliases(shared).items() if kept == name] for name in weights(shared)}
    for name, parameter in shared.named_parameters():
        if name.startswith("pooler"):
            continue
        together = [of_own[other] for other in (name, *same[name])]
        is_shared = any(f".layers.0.{part}." in name for part in SHARED[share])
        assert len(together) == (3 if is_shared else 1), name
        torch.testing.assert_close(parameter.grad, torch.stack(together).sum(0))


@pytest.mark.parametrize("share", SHARED)
def test_optimisers_get_each_parameter_once(share: Sharing) -> None:
    encoder = albert(share)
    named = classify(encoder)
    identities = [id(item.parameter) for item in named]
    assert len(set(identities)) == len(identities) == len(list(encoder.parameters()))
    kinds = {item.name.removeprefix("stack.layers.0."): (item.kind, item.splits) for item in named}
    assert kinds["attention.query_key_value.weight"] == ("hidden", 3)
    assert kinds["projection.weight"] == ("weight", 1)  # not a matrix of a block
    for optimizer in (Muon(learner=encoder), AdamW(learner=encoder), Lamb(learner=encoder)):
        held = [id(p) for part in optimizer.parts for group in part.param_groups for p in group["params"]]
        assert sorted(held) == sorted(identities)


@pytest.mark.parametrize("share", SHARED)
def test_sharing_survives_saving_loading_and_copying(share: Sharing, tmp_path: Path) -> None:
    encoder, other = albert(share), albert(share, seed=1)
    kept = weights(encoder)
    assert len({tensor.data_ptr() for tensor in kept.values()}) == len(kept) == len(list(encoder.parameters()))
    save_file(kept, tmp_path / "w")
    load_weights(other, load_file(tmp_path / "w"))
    batch = batch_of()
    for loaded in (other, copy.deepcopy(encoder)):
        assert torch.equal(loaded(batch).last, encoder(batch).last)
        for part in SHARED[share]:
            assert getattr(loaded.stack.layers[2], part) is getattr(loaded.stack.layers[0], part)
