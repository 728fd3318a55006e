"""Every model of conf/model in every way of transfer: all that is to learn does, and what is frozen stays."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from support.models import CASES, DISTINCT, FEW, KINDS, small_encoder, task_batch, task_learner
from support.refusals import refuses
from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.transfer.learner import TaskLearner


def _hash(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def _step(learner: TaskLearner, optimizer: AdamW, fraction: float, batch: TaskBatch) -> None:
    learner.train()
    learner.on_progress(fraction)
    losses, _ = learner.losses(batch)
    assert {name: loss.count for name, loss in losses.items()} == learner.counts(batch)
    (loss,) = losses.values()
    (loss.sum / loss.count).backward()
    without = [name for name, p in learner.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    optimizer.step()
    optimizer.zero_grad()


#: What reaches the parts of a model: how deep its parameters are, and which rows its heads read.
OF_EVERY_MODEL = [("classification", "finetune_beside"), ("classification", "gradual"), ("span", "finetune")]


@pytest.mark.parametrize(
    ("path", "head", "way"),
    [
        *((KINDS[0], *case) for case in CASES if case not in OF_EVERY_MODEL),
        *((path, *case) for path in KINDS for case in OF_EVERY_MODEL),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_all_that_is_to_learn_does_and_nothing_else(path: Path, head: str, way: str) -> None:
    learner, optimizer = task_learner(path, way, head)
    encoder, before = _hash(learner.encoder), _hash(learner.head)
    _step(learner, optimizer, fraction=0.0, batch=task_batch(head))
    assert _hash(learner.head) != before
    pooler = learner.encoder.pooler if learner.use_pooler else None
    only_head = not way.startswith("finetune") and (pooler is None or way != "gradual")
    only_embeddings = way == "finetune_beside" and set(learner.depths.values()) == {1}
    assert (_hash(learner.encoder) == encoder) is (only_head or only_embeddings)
    if way == "finetune_beside":
        lowest = {name for name, depth in learner.depths.items() if depth == max(learner.depths.values())}
        table = learner.encoder.token_embedding
        assert not any(learner.encoder.get_parameter(name).requires_grad for name in lowest)
        assert table is None or not table.weight.requires_grad
    if way == "gradual":
        moved = _hash(learner.encoder)
        _step(learner, optimizer, fraction=0.5, batch=task_batch())
        assert _hash(learner.encoder) != moved
        assert all(learner.encoder.get_parameter(name).requires_grad for name in learner.depths)


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_of_a_fixed_encoder_only_the_few_parameters_learn(path: Path, way: str) -> None:
    lacks = ("word_embeddings", "elmo") if way == "lora" else ("word_embeddings", "modern")
    if path.stem.startswith(lacks):
        with refuses(ConfigError, f"transfer={way}", type(small_encoder(path)).__name__):
            task_learner(path, way)
        return
    learner, optimizer = task_learner(path, way)
    pooler = learner.encoder.pooler if learner.use_pooler else None
    apart = {id(parameter) for parameter in pooler.parameters()} if pooler is not None else set()
    few = {name for name, p in learner.encoder.named_parameters() if p.requires_grad and id(p) not in apart}
    assert all((".updates." in name) if way == "lora" else ("bias" in name) for name in few)
    before = {name: p.clone() for name, p in learner.encoder.named_parameters() if id(p) not in apart}
    for _ in range(2):  # after one step A has not moved, because B was 0
        _step(learner, optimizer, fraction=0.5, batch=task_batch())
    moved = {name for name, tensor in before.items() if not torch.equal(learner.encoder.get_parameter(name), tensor)}
    assert moved == {name for name in few if not name.endswith("biases.segment")}  # the batch has one segment


@pytest.mark.parametrize("path", DISTINCT, ids=lambda path: path.stem)
def test_depths_are_those_of_the_blocks(path: Path) -> None:
    """A second opinion on depths: the place of each block in its list, where layers are not shared."""
    learner, _ = task_learner(path, "finetune")
    encoder, depths = learner.encoder, learner.depths
    lists = [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    checked = 0
    for blocks in lists:
        if len(blocks) != encoder.num_layers or encoder.num_layers < 2:
            continue
        parts = [{id(parameter) for parameter in block.parameters()} for block in blocks]
        found = [{depths.get(names[part]) for part in own} for own in parts]
        if all(own == parts[0] for own in parts):  # one set of weights for all layers
            assert found == [{1}] * len(blocks)
            checked += 1
        elif {len(values) for values in found} == {1} and found != [{max(depths.values())}] * len(blocks):
            assert found == [{encoder.num_layers - place} for place in range(len(blocks))]
            checked += 1
    lowest = max(depths.values())
    if encoder.token_embedding is not None:
        assert depths[names[id(encoder.token_embedding.weight)]] == lowest
    assert lowest >= min(2, encoder.num_layers + 1)
    assert checked or lowest <= 2, "no list of blocks has depths of its own"
    assert set(range(1, lowest + 1)) == set(depths.values())
