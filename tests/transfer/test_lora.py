"""LoRA: the update in closed form, base weights that never change, and merged weights with the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.tasks import bert, gpt, labels_head, random_examples
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses
from torch import nn

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError
from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.models.base import Encoder
from lmtransfer.models.electra import ElectraEncoder
from lmtransfer.models.gpt import BiGptEncoder
from lmtransfer.models.layers.lora import LoraLinear, LowRankUpdate, merge_saved_updates
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.models.roberta import RobertaEncoder
from lmtransfer.models.transformer_xl import TransformerXlEncoder
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.training.optim.optimizers import AdamW, Muon
from lmtransfer.training.weights import load_weights, num_parameters, weights
from lmtransfer.transfer.freezing import matrices_of
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

SIZES: dict[str, Any] = {"vocab_size": 128, "dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32}
ATTENTION, FEED_FORWARD = ["query", "key", "value", "output"], ["expand", "contract"]
RELATIVE = ["query", "key", "value", "position", "output", *FEED_FORWARD]
#: For each family: an encoder, and the names of its matrices.
FAMILIES: dict[str, tuple[Callable[[], Encoder], list[str]]] = {
    "bert": (bert, ATTENTION + FEED_FORWARD),
    "gpt": (gpt, ATTENTION + FEED_FORWARD),
    "bi_gpt": (lambda: BiGptEncoder(**{**SIZES, "dim": 32}), ATTENTION + FEED_FORWARD),
    "roberta": (lambda: RobertaEncoder(**SIZES), ATTENTION + FEED_FORWARD),
    "albert": (lambda: AlbertEncoder(**SIZES, embedding_dim=8), ATTENTION + FEED_FORWARD),
    "electra": (lambda: ElectraEncoder(**SIZES, embedding_dim=8), ATTENTION + FEED_FORWARD),
    "modern": (lambda: ModernEncoder(**SIZES), [*ATTENTION, "expand", "gate", "contract"]),
    "xlnet": (lambda: XlnetEncoder(**SIZES), RELATIVE),
    "transformer_xl": (lambda: TransformerXlEncoder(**SIZES), RELATIVE),
}
SOURCE = TaskSource(random_examples(24))


def _batch(rows: range = range(24)) -> TaskBatch:
    return SOURCE.build(0, SOURCE.plan(0), list(rows))


def _learner(encoder: Encoder, freeze: str = "lora", **changes: Any) -> TaskLearner:
    method = TransferMethod(freeze=freeze, **changes)  # type: ignore[arg-type]
    learner = method.learner(encoder, head=labels_head(2), seed=0)
    learner.arrange(_batch())
    return learner


def _train(learner: TaskLearner, optimizer: Any, steps: int = 4) -> None:
    learner.train()
    for step in range(steps):
        losses, _ = learner.losses(_batch(range(6 * step, 6 * step + 6)))
        optimizer.zero_grad()
        losses["classification"].sum.backward()
        optimizer.step()


def _is_update(name: str) -> bool:
    return ".updates." in name


def _moved(learner: TaskLearner) -> None:
    """Set the matrix B of every update to nonzero values."""
    torch.manual_seed(5)
    for module in learner.modules():
        if isinstance(module, LowRankUpdate):
            nn.init.normal_(module.b.weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_begins_as_the_model_itself(family: str) -> None:
    make, names = FAMILIES[family]
    torch.manual_seed(3)
    plain = _learner(make(), "full").eval()
    torch.manual_seed(3)
    encoder = make()
    assert list(dict.fromkeys(matrix.name for matrix in matrices_of(encoder))) == names
    learner = _learner(encoder, lora_matrices="all", lora_rank=2).eval()
    assert torch.equal(learner.predict(_batch()), plain.predict(_batch()))


@pytest.mark.parametrize(
    ("family", "matrices"), [*((family, "all") for family in FAMILIES), ("bert", ["query", "value"])]
)
def test_merged_weights_compute_the_same(family: str, matrices: Any) -> None:
    make, _ = FAMILIES[family]
    torch.manual_seed(3)
    learner = _learner(make(), lora_matrices=matrices, lora_rank=2)
    _moved(learner)
    before = learner.eval().predict(_batch())
    saved = {name.removeprefix("encoder."): tensor.clone() for name, tensor in weights(learner).items()}
    learner.fold()
    assert not any(isinstance(module, LoraLinear) for module in learner.modules())
    torch.testing.assert_close(learner.predict(_batch()), before, atol=1e-5, rtol=1e-5)
    encoder = make()  # from a checkpoint, into an ordinary encoder
    load_weights(encoder, {name: t for name, t in merge_saved_updates(saved).items() if not name.startswith("head.")})
    for name, tensor in weights(encoder).items():
        torch.testing.assert_close(tensor, weights(learner.encoder)[name], atol=1e-6, rtol=1e-6)
    torch.manual_seed(3)
    plain = _learner(make(), "full").eval()
    assert not torch.allclose(plain.predict(_batch()), before, atol=1e-3), "the updates change nothing"


@pytest.mark.parametrize(("family", "optimizer"), [*((family, AdamW) for family in FAMILIES), ("bert", Muon)])
def test_only_updates_and_head_move_and_get_gradients(family: str, optimizer: Any) -> None:
    make, _ = FAMILIES[family]
    torch.manual_seed(3)
    learner = _learner(make())
    before = {name: tensor.clone() for name, tensor in weights(learner).items()}
    _train(learner, optimizer(learner=learner, learning_rate=0.05, weight_decay=0.1))
    learner.on_progress(1.0)
    pooler = "encoder.pooler." if learner.use_pooler else "head."
    due = {name for name in before if _is_update(name) and not name.endswith("scale")}
    due |= {name for name in before if name.startswith(("head.", pooler))}
    moved = {name for name, tensor in weights(learner).items() if not torch.equal(tensor, before[name])}
    assert moved == due
    assert {name for name, parameter in learner.named_parameters() if parameter.grad is not None} == due


def test_the_number_of_parameters_is_that_of_the_formula() -> None:
    learner = _learner(bert(), lora_rank=4, lora_matrices="all")
    attention, feed_forward = 4 * 4 * (16 + 16), 2 * 4 * (16 + 32)
    updates = sum(p.numel() for name, p in learner.named_parameters() if _is_update(name))
    assert updates == 2 * (attention + feed_forward)
    assert num_parameters(learner) == num_parameters(_learner(bert(), "full")) + updates


def test_layers_that_share_their_weights_share_the_update() -> None:
    encoder = AlbertEncoder(**SIZES, embedding_dim=8)
    learner = _learner(encoder, lora_rank=4)
    own = [name for name in weights(learner) if name.endswith("a.weight")]
    assert len(own) == 2  # query and value, once for both layers
    assert encoder.stack.layers[0].attention is encoder.stack.layers[1].attention


def test_the_head_of_a_seed_is_that_of_other_methods() -> None:
    heads = [weights(_learner(bert(), freeze).head) for freeze in ("lora", "bitfit", "full")]
    for head in heads[1:]:
        assert all(torch.equal(tensor, head[name]) for name, tensor in heads[0].items())


def test_the_rate_of_the_updates_is_the_encoders() -> None:
    node = OmegaConf.load(conf_dir() / "transfer" / "lora.yaml")
    method = build(OmegaConf.merge(node, {"encoder_rate": 7.0, "head_rate": 3.0}))
    learner = method.learner(bert(), head=labels_head(2), seed=0)
    learner.arrange(_batch())
    scales = method.lr_scales(learner)
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            expected = 7.0 if _is_update(name) else 3.0 if name.startswith("head.") else 1.0
            assert scales.get(name, 1.0) == expected, name


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"lora_rank": 0}, ("transfer.lora_rank=0",)),
        ({"lora_rank": 17}, ("transfer.lora_rank=17", "16 x 16", "query")),
        ({"lora_rank": 17, "lora_matrices": ["expand"]}, ("transfer.lora_rank=17", "32 x 16", "expand")),
        ({"lora_alpha": 0.0}, ("transfer.lora_alpha=0.0",)),
        ({"lora_matrices": []}, ("transfer.lora_matrices",)),
        ({"lora_matrices": ["query", "vlaue"]}, ("transfer.lora_matrices", "vlaue", "'value'", "contract", "all")),
        ({"lora_matrices": "gate"}, ("transfer.lora_matrices", "gate", "query, key, value, output, expand, contract")),
        ({"layer_decay": 0.8}, ("transfer.layer_decay=0.8", "transfer.freeze=lora", "transfer=full")),
        ({"layer_decay_gap": True}, ("transfer.layer_decay_gap=True", "transfer.freeze=lora")),
        ({"embedding_rate": 0.0}, ("transfer.embedding_rate=0.0", "transfer.freeze=lora")),
        ({"unfreeze_share": 0.3}, ("transfer.unfreeze_share=0.3", "transfer.freeze=lora", "transfer=gradual")),
        ({"encoder_rate": 0.0}, ("transfer.encoder_rate=0.0",)),
        ({"layers": 0, "pooling": "mean"}, ("transfer.layers=0", "transfer=frozen")),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        _learner(bert(), **changes)


def test_an_encoder_without_attention_is_refused() -> None:
    with refuses(ConfigError, "transfer=lora", "WordEmbeddings", "transfer=frozen"):
        _learner(WordEmbeddings(vocab_size=128, dim=16))
