"""Residual streams in bfloat16: the dtypes between the layers, the norms, and losses near those of float32."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.cuda.device import FakeCuda
from fakes.cuda.fake_tensors import fake_tensors, to_device
from fakes.cuda.watch import Watch
from fakes.objectives import random_documents, store_of
from support.objective_table import built
from support.refusals import refuses
from torch import Tensor, nn

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import encoders_in
from lmtransfer.models.execution import keep_residual
from lmtransfer.models.layers.building_blocks import ResidualNorm
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner

#: A model of each kind of stack, and its place of norms.
CASES = [
    ("mlm", "bert_laptop", "post"),
    ("rtd", "electra_laptop", "pre"),
    ("mlm_sop", "albert_laptop", "post"),
    ("rtd", "modern_laptop", "pre"),
    ("bilm", "bi_gpt_laptop", "pre"),
    ("lm_contiguous", "transformer_xl_laptop", "post"),
    ("plm", "xlnet_laptop", "post"),
]


def _given(objective: str, model: str, norm: str, folder: Path) -> tuple[PretrainingLearner, list[PretrainingBatch]]:
    """A small learner, and five batches."""
    store = store_of(folder / f"{objective}-{model}", random_documents(60))
    changes = {} if model == "modern_laptop" else {"norm": norm}
    learner, source, _ = built(objective, store, "objective.max_length=24", changes=changes, model=model)
    plan = source.plan(0)
    return learner, [source.build(0, plan, range(8 * step, 8 * step + 8)) for step in range(5)]


def _between(learner: PretrainingLearner, batch: PretrainingBatch, device: str) -> tuple[set[str], set[str]]:
    """The dtypes of a pass under autocast: what goes from layer to layer, and the last layer of each encoder."""
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
    with torch.autocast(device, dtype=torch.bfloat16):
        losses, _ = learner.losses(batch)
    torch.stack([loss.weight * loss.sum for loss in losses.values() if loss.weight]).sum().backward()
    return seen, last


@pytest.mark.parametrize(("objective", "model", "norm"), CASES)
def test_the_stream_is_bfloat16_and_the_last_layer_float32(
    objective: str, model: str, norm: str, tmp_path: Path
) -> None:
    learner, batches = _given(objective, model, norm, tmp_path)
    keep_residual(learner, torch.bfloat16)
    seen, last = _between(learner, batches[0], "cpu")
    assert seen == {"torch.bfloat16"}
    assert last == {"torch.float32"} or objective == "plm"  # it calls two_stream
    assert all(parameter.dtype == torch.float32 for parameter in learner.parameters())


@pytest.mark.parametrize(("objective", "model", "norm"), CASES)
def test_the_stream_on_cuda(objective: str, model: str, norm: str, tmp_path: Path, fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_on_cuda, objective, model, norm, tmp_path, "bfloat16") == ({"torch.bfloat16"}, [])
    if (objective, model, norm) == CASES[0]:
        assert fake_cuda(_on_cuda, objective, model, norm, tmp_path, "float32")[0] >= {"torch.float32"}


def _on_cuda(objective: str, model: str, norm: str, folder: Path, dtype: str) -> tuple[set[str], list[str]]:
    """The dtypes between the layers, and what the watch finds."""
    learner, batches = _given(objective, model, norm, folder)
    keep_residual(learner, getattr(torch, dtype))
    with fake_tensors():
        to_device(learner)
        moved = batches[0].pin_memory().to("cuda")
        with Watch() as watch:
            seen, _ = _between(learner, moved, "cuda")
    return seen, list(watch.findings)


@pytest.mark.parametrize(("objective", "model", "norm"), CASES)
def test_losses_stay_near_those_of_float32(objective: str, model: str, norm: str, tmp_path: Path) -> None:
    curves = []
    for dtype in (torch.float32, torch.bfloat16):
        learner, batches = _given(objective, model, norm, tmp_path)
        keep_residual(learner, dtype)
        optimizer, totals = torch.optim.AdamW(learner.parameters(), lr=1e-3), []
        for step, batch in enumerate(batches):
            torch.manual_seed(step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses, _ = learner.losses(batch)
            total = torch.stack([loss.weight * loss.sum / loss.count for loss in losses.values() if loss.weight]).sum()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            totals.append(total.item())
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
