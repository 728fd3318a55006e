"""Layers that the backward pass recomputes: the same losses and gradients to the last bit, with less memory."""

from __future__ import annotations

import multiprocessing
import shutil
from typing import Any

import pytest
import torch
from fakes.objectives import random_documents, store_of
from fakes.tasks import bert
from support.objective_table import built, small_model
from support.refusals import refuses

from lmtransfer.data.stream import PlannedStream
from lmtransfer.data.token_store import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.execution import checkpoint_activations, compile_blocks
from lmtransfer.models.layers.attention.layout import Layout
from lmtransfer.objectives.learner import PretrainingLearner

MODELS = {
    "bert_laptop": "mlm",
    "gpt_mini": "lm",
    "electra_laptop": "rtd",
    "transformer_xl_laptop": "lm_contiguous",
    "xlnet_laptop": "plm",
    "albert_laptop": "mlm_sop",
    "modern_laptop": "mlm",
    "bi_gpt_laptop": "bilm",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("store"), random_documents(60))


def _passes(learner: PretrainingLearner, batches: list[Any]) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Losses and gradients of consecutive passes, and the numbers that the first pass keeps for its backward pass."""
    kept: list[int] = []
    values, state = [], None
    learner.train()
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
            losses, state = learner.losses(batch, state)
            if not number:
                of_first = sum(kept)
        sum(loss.sum for loss in losses.values()).backward()
        values += [loss.sum.item() for loss in losses.values()]
    return values, {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}, of_first


@pytest.mark.parametrize(("model", "objective"), MODELS.items())
def test_recomputed_layers_learn_the_same_to_the_last_bit(model: str, objective: str, store: TokenStore) -> None:
    changes = {"dropout": 0.1, "attention_dropout": 0.1}
    plain, source, _ = built(objective, store, "objective.max_length=48", model=model, changes=changes)
    steps = PlannedStream(source, seed=0, batch_tokens=192).steps(0)
    batches = [next(steps).micro_batches[0] for _ in range(2)]
    recomputed = built(objective, store, "objective.max_length=48", model=model, changes=changes)[0]
    recomputed.load_state_dict(plain.state_dict())
    checkpoint_activations(recomputed)
    assert recomputed.state_dict().keys() == plain.state_dict().keys()
    losses, gradients, kept = _passes(plain, batches)
    again, found, kept_now = _passes(recomputed, batches)
    assert again == losses
    assert found.keys() == gradients.keys()
    assert all(torch.equal(found[name], gradients[name]) for name in gradients)
    assert kept_now < 0.7 * kept


@pytest.mark.parametrize("model", ["elmo_laptop", "elmo_subword_laptop", "word_embeddings_laptop"])
def test_encoders_without_attention_are_refused(model: str) -> None:
    encoder = small_model(model)
    with refuses(ConfigError, "hardware.activation_checkpointing", type(encoder).__name__):
        checkpoint_activations(encoder)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a processor's code is compiled by g++")
def test_compiled_layers_repeat_their_dropout() -> None:
    process = multiprocessing.get_context("spawn").Process(target=_compiled_layers_repeat_their_dropout)
    process.start()
    process.join()
    assert process.exitcode == 0


def _compiled_layers_repeat_their_dropout() -> None:
    states, layout = torch.randn(32, 16, requires_grad=True), Layout.of([20, 12])
    gradients = []
    for recompute in (False, True):
        encoder = bert(num_layers=1, dropout=0.3)
        compile_blocks(encoder)
        if recompute:
            checkpoint_activations(encoder)
        torch.manual_seed(1)
        (layer,) = encoder.blocks()
        layer(states, layout).square().sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is not None
        assert recomputed is not None
        assert torch.equal(plain, recomputed)
