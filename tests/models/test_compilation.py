from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.tasks import bert, labels_head, random_examples

from lmtransfer.models.execution import compile_blocks
from lmtransfer.models.layers.attention.layout import Layout
from lmtransfer.models.layers.building_blocks import InputEmbeddings
from lmtransfer.models.transformer import TransformerLayer
from lmtransfer.tasks.source import TaskSource, coarse_size
from lmtransfer.transfer.method import TransferMethod


def test_the_embeddings_and_the_layers_are_compiled_and_nothing_else() -> None:
    learner = TransferMethod(freeze="full").learner(bert(), head=labels_head(2), seed=0)
    compile_blocks(learner)
    compiled = [type(module) for module in learner.modules() if module._compiled_call_impl is not None]
    assert compiled == [InputEmbeddings, TransformerLayer, TransformerLayer]


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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a processor's code is compiled by g++")
@pytest.mark.parametrize("check", ["_compiled_layers_learn_what_plain_ones_learn", "_compiled_layers_drop"])
def test_what_is_compiled(check: str) -> None:
    """Each in a process of its own: code that was compiled wrongly corrupts its memory."""
    process = multiprocessing.get_context("spawn").Process(target=globals()[check])
    process.start()
    process.join()
    assert process.exitcode == 0


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
