"""Every file of conf/model in every way of transfer: builds, learns with all that is to learn, keeps what is frozen."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from refusals import refuses
from test_model_configs import CONFIGS, _encoder, _rows, pack
from torch import nn

from lmtransfer.config.component import build
from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, RegressionSpec, SpanSpec, TaggingSpec
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.tasks.targets import LabelTargets, ScoreTargets, SpanTargets, TagTargets
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.transfer.learner import TaskLearner

#: Each head with what is asked of four sequences of 9, 4, 17 and 2 tokens, and the sequence of each row of that.
HEADS: dict[str, tuple[HeadSpec, list[list[float]], list[int]]] = {
    "classification": (ClassificationSpec(3), [[0], [1], [2], [1]], [0, 1, 2, 3]),
    "regression": (RegressionSpec(), [[0.5], [1.0], [-2.0], [3.0]], [0, 1, 2, 3]),
    "tagging": (TaggingSpec(3), [[1, 2, 0], [3, 1, 2], [1, 1, 1], [2, 9, -1], [0, 1, 2]], [0, 0, 1, 2, 3]),
    "span": (
        SpanSpec(1, max_answer_tokens=3),
        [[4, 5, -1, 3, 8], [-1, -1, -1, 1, 3], [-1, -1, 0, 4, 16], [1, 1, -1, 1, 2]],
        [0, 1, 2, 3],
    ),
}
TARGETS = {"classification": LabelTargets, "regression": ScoreTargets, "tagging": TagTargets, "span": SpanTargets}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "probe": ("frozen", {}),
    "probe_mix": ("frozen", {"layers": "mix", "mix_layer_norm": True}),
    "probe_bilstm": ("frozen", {"layers": 0, "pooling": "bilstm", "lstm_dim": 8}),
    "finetune": ("full", {}),
    "finetune_mix": ("full", {"layers": "mix", "pooling": "mean", "layer_decay": 0.8}),
    "finetune_beside": ("full", {"layers": [0, "last"], "pooling": "mean", "standardise": True, "embedding_rate": 0}),
    "gradual": ("gradual", {}),
}
#: Ways in which few parameters of the encoder learn.
FEW: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("lora", {"lora_rank": 4, "lora_matrices": "all"}),
    "bitfit": ("bitfit", {}),
}
#: The other heads need not be tried in all ways.
CASES = [("classification", way) for way in WAYS]
CASES += [(head, way) for head in ("regression", "tagging", "span") for way in ("probe_bilstm", "finetune")]


def _batch(head: str = "classification") -> TaskBatch:
    _, asked, owners = HEADS[head]
    dtype = torch.float32 if head == "regression" else torch.int64
    return TaskBatch(
        packed=pack(_rows([9, 4, 17, 2])),
        targets=TARGETS[head](*torch.tensor(asked, dtype=dtype).unbind(1)),
        target_owners_R=torch.tensor(owners),
        rows=(0, 1, 2, 3),
        keys=("a", "b", "c", "d"),
    )


def _learner(path: Path, way: str, head: str = "classification") -> tuple[TaskLearner, AdamW]:
    name, changes = {**WAYS, **FEW}[way]
    node = OmegaConf.merge(OmegaConf.load(conf_dir() / "transfer" / f"{name}.yaml"), changes)
    method = build(OmegaConf.create({"transfer": node}).transfer)
    learner = method.learner(_encoder(path), head=HEADS[head][0], seed=0)
    learner.arrange(_batch(head))
    return learner, AdamW(learner=learner, learning_rate=0.01, lr_scales=method.lr_scales(learner))


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


@pytest.mark.parametrize(("head", "way"), CASES)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_all_that_is_to_learn_does_and_nothing_else(path: Path, head: str, way: str) -> None:
    learner, optimizer = _learner(path, way, head)
    encoder, before = _hash(learner.encoder), _hash(learner.head)
    _step(learner, optimizer, fraction=0.0, batch=_batch(head))
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
        _step(learner, optimizer, fraction=0.5, batch=_batch())
        assert _hash(learner.encoder) != moved
        assert all(learner.encoder.get_parameter(name).requires_grad for name in learner.depths)


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_of_a_fixed_encoder_only_the_few_parameters_learn(path: Path, way: str) -> None:
    lacks = ("word_embeddings", "elmo") if way == "lora" else ("word_embeddings", "modern")
    if path.stem.startswith(lacks):
        with refuses(ConfigError, f"transfer={way}", type(_encoder(path)).__name__):
            _learner(path, way)
        return
    learner, optimizer = _learner(path, way)
    pooler = learner.encoder.pooler if learner.use_pooler else None
    apart = {id(parameter) for parameter in pooler.parameters()} if pooler is not None else set()
    few = {name for name, p in learner.encoder.named_parameters() if p.requires_grad and id(p) not in apart}
    assert all((".updates." in name) if way == "lora" else ("bias" in name) for name in few)
    before = {name: p.clone() for name, p in learner.encoder.named_parameters() if id(p) not in apart}
    for _ in range(2):  # after one step A has not moved, because B was 0
        _step(learner, optimizer, fraction=0.5, batch=_batch())
    moved = {name for name, tensor in before.items() if not torch.equal(learner.encoder.get_parameter(name), tensor)}
    assert moved == {name for name in few if not name.endswith("biases.segment")}  # the batch has one segment


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_depths_are_those_of_the_blocks(path: Path) -> None:
    """A second opinion on depths: the place of each block in its list, where layers are not shared."""
    learner, _ = _learner(path, "finetune")
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
