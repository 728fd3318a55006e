"""Compilation, activation checkpointing, and residual streams in bfloat16."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.cuda.device import FakeCuda
from fakes.cuda.fake_tensors import fake_tensors, to_device
from fakes.cuda.watch import Watch
from fakes.objectives import random_documents, store_of
from fakes.tasks import bert, labels_head, random_examples
from support.objective_table import built, small_model
from support.refusals import refuses
from torch import Tensor, nn

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import encoders_in
from lmtransfer.models.execution import checkpoint_activations, compile_blocks, keep_residual
from lmtransfer.models.layers.attention.dispatch import Layout
from lmtransfer.models.layers.building_blocks import ResidualNorm
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.tasks.source import TaskSource, coarse_size
from lmtransfer.transfer.method import TransferMethod


def test_sizes_are_few_and_hold_the_tokens() -> None:
    sizes = {num: coarse_size(num) for num in range(1, 5000)}
    assert all(num <= size and size % 32 == 0 for num, size in sizes.items())
    assert all(size - num <= size / 5 for num, size in sizes.items() if num >= 128)
    assert len({size for num, size in sizes.items() if 1000 < num <= 2000}) <= 5


def test_batches_of_few_sizes_have_the_same_logits() -> None:
    learner = TransferMethod(freeze="full", pooling="mean").learner(bert(), head=labels_head(2), seed=0).eval()
    encoded = random_examples(64)
    rows = np.arange(64)[:40]
    plain, coarse = TaskSource(encoded), TaskSource(encoded, few_sizes=True)
    one, other = (source.build(0, source.plan(0), rows) for source in (plain, coarse))
    assert len(other.packed.tokens_T) == coarse_size(one.num_tokens) > one.num_tokens
    torch.testing.assert_close(learner.predict(one), learner.predict(other), atol=1e-6, rtol=1e-5)


def test_other_instructions_have_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for instructions in ("AVX2", "AVX512"):
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda shown=instructions: shown)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        for _ in range(2):
            compile_blocks(torch.nn.Linear(1, 1))
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / instructions.lower())


def _compiled_layers_learn_what_plain_ones_learn() -> None:
    encoded = random_examples(24)
    source = TaskSource(encoded, few_sizes=True)
    batch = source.build(0, source.plan(0), np.arange(24))
    gradients = []
    for compiled in (False, True):
        method = TransferMethod(freeze="full", pooling="mean", dropout=0.0)
        learner = method.learner(bert(dropout=0.0), head=labels_head(2), seed=0)
        if compiled:
            compile_blocks(learner)
        (loss,) = learner.losses(batch)[0].values()
        loss.sum.backward()
        gradients.append({name: p.grad for name, p in learner.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, plain in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], plain, atol=1e-5, rtol=1e-4, msg=name)


def _compiled_layers_drop() -> None:
    torch.manual_seed(0)
    encoder = bert(num_layers=1, dropout=0.5)
    compile_blocks(encoder)
    (layer,) = encoder.blocks()
    states, layout = torch.randn(32, encoder.dim, requires_grad=True), Layout.of([20, 12])
    first, second = layer(states, layout), layer(states, layout)
    assert not torch.equal(first, second)
    first.sum().backward()
    layer.eval()
    assert torch.equal(layer(states, layout), layer(states, layout))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a processor's code is compiled by g++")
def test_what_is_compiled() -> None:
    """Run in a separate process, whose memory wrongly compiled code can corrupt."""
    process = multiprocessing.get_context("spawn").Process(target=_what_is_compiled)
    process.start()
    process.join()
    assert process.exitcode == 0


def _what_is_compiled() -> None:
    _compiled_layers_learn_what_plain_ones_learn()
    _compiled_layers_drop()
    _compiled_layers_repeat_their_dropout()


MODELS = {
    "bert_laptop": "mlm",
    "electra_laptop": "rtd",
    "transformer_xl_laptop": "lm_contiguous",
    "albert_laptop": "mlm_sop",
    "modern_laptop": "mlm",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return store_of(tmp_path_factory.mktemp("store"), random_documents(60))


def _passes(learner: PretrainingLearner, batches: list[Any]) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Return the losses and gradients of consecutive passes, and the size of what the first pass saves for backward."""
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


#: A model of each kind of stack, and its place of norms.
CASES = [
    ("mlm", "bert_laptop", "post"),
    ("rtd", "modern_laptop", "pre"),
    ("lm_contiguous", "transformer_xl_laptop", "post"),
    ("plm", "xlnet_laptop", "post"),
]


def _given(objective: str, model: str, norm: str, folder: Path) -> tuple[PretrainingLearner, list[PretrainingBatch]]:
    """Return a small learner and three batches."""
    store = store_of(folder / f"{objective}-{model}", random_documents(60))
    changes = {} if model == "modern_laptop" else {"norm": norm}
    learner, source, _ = built(objective, store, "objective.max_length=24", changes=changes, model=model)
    plan = source.plan(0)
    return learner, [source.build(0, plan, range(8 * step, 8 * step + 8)) for step in range(3)]


def _watched(learner: PretrainingLearner) -> tuple[set[str], set[str]]:
    """Record the dtypes of the states between layers, and of the last layer of each encoder."""
    seen: set[str] = set()
    last: set[str] = set()

    def note(_: nn.Module, given: Any, made: Any) -> None:
        states = [*(part for part in given if isinstance(part, Tensor) and part.ndim == 2)]
        states += made if isinstance(made, list) else [made]
        seen.update(str(tensor.dtype) for tensor in states if tensor.is_floating_point())

    for encoder in encoders_in(learner):
        encoder.register_forward_hook(lambda _, given, made: last.add(str(made.last.dtype)))
        for block in encoder.blocks():
            block.register_forward_hook(note)
    return seen, last


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "model", "norm"), [CASES[0], CASES[1], CASES[3]])
def test_the_stream_on_cuda(objective: str, model: str, norm: str, tmp_path: Path, fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_on_cuda, objective, model, norm, tmp_path, "bfloat16") == ({"torch.bfloat16"}, [])
    if (objective, model, norm) == CASES[0]:
        assert fake_cuda(_on_cuda, objective, model, norm, tmp_path, "float32")[0] >= {"torch.float32"}


def _on_cuda(objective: str, model: str, norm: str, folder: Path, dtype: str) -> tuple[set[str], list[str]]:
    """Return the dtypes of the states between layers, and the findings of the watch."""
    learner, batches = _given(objective, model, norm, folder)
    keep_residual(learner, getattr(torch, dtype))
    with fake_tensors():
        to_device(learner)
        moved = batches[0].pin_memory().to("cuda")
        seen, _ = _watched(learner)
        with Watch() as watch:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                losses, _ = learner.losses(moved)
            torch.stack([loss.weight * loss.sum for loss in losses.values() if loss.weight]).sum().backward()
    return seen, list(watch.findings)


@pytest.mark.parametrize(("objective", "model", "norm"), CASES[:3])
def test_the_stream_is_bfloat16_the_last_layer_float32_and_losses_stay_near_those_of_float32(
    objective: str, model: str, norm: str, tmp_path: Path
) -> None:
    curves = []
    for dtype in (torch.float32, torch.bfloat16):
        learner, batches = _given(objective, model, norm, tmp_path)
        keep_residual(learner, dtype)
        optimizer, totals = torch.optim.AdamW(learner.parameters(), lr=1e-3), []
        seen, last = _watched(learner)
        for step, batch in enumerate(batches):
            torch.manual_seed(step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses, _ = learner.losses(batch)
            total = torch.stack([loss.weight * loss.sum / loss.count for loss in losses.values() if loss.weight]).sum()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            totals.append(total.item())
        if dtype == torch.bfloat16:
            assert seen == {"torch.bfloat16"}
            assert last == {"torch.float32"} or objective == "plm"  # plm calls two_stream
        assert all(parameter.dtype == torch.float32 for parameter in learner.parameters())
        curves.append(totals)
    assert curves[1] == pytest.approx(curves[0], rel=0.02)
    assert curves[1] != curves[0]


def test_norms_are_computed_in_float32_and_rounded_once() -> None:
    torch.manual_seed(0)
    norm, states = ResidualNorm(64), (100 + 3 * torch.randn(5, 64)).bfloat16()
    nn.init.normal_(norm.weight)
    with torch.no_grad():
        norm.weight.copy_(norm.weight.bfloat16())
    exact = nn.functional.layer_norm(states.double(), (64,), norm.weight.double(), norm.bias.double(), norm.eps)
    norm.keeps_dtype = True
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = norm(states)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-6)


def test_float32_changes_nothing_and_a_model_without_a_stream_is_refused(tmp_path: Path) -> None:
    learner, _ = _given("mlm", "bert_laptop", "post", tmp_path)
    keep_residual(learner, torch.float32)
    norms = [module for module in learner.modules() if isinstance(module, ResidualNorm)]
    assert len(norms) == 4
    assert not any(norm.keeps_dtype for norm in norms)
    with refuses(ConfigError, "hardware.residual", "float32"):
        keep_residual(nn.ModuleList(itertools.repeat(nn.Linear(2, 2), 2)), torch.bfloat16)
