"""Embeddings and head at rates of their own; embeddings that do not learn."""

from __future__ import annotations

import pytest
import torch
from fakes.tasks import bert, gpt, labels_head, random_examples
from support.refusals import refuses
from torch import Tensor, nn

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.optim.optimizers import AdamW, Lamb, Muon
from lmtransfer.transfer.experiment.training_run import train_used_rows
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

SOURCE = TaskSource(random_examples(24))
#: Attention pooling has parameters of its own, and so has a mixture: both are new.
NEW = {"layers": "mix", "pooling": "attention"}


def _batch(step: int = 0) -> TaskBatch:
    return SOURCE.build(0, SOURCE.plan(0), [(7 * step + i) % 24 for i in range(6)])


def _arranged(
    encoder: nn.Module | None = None, *, freeze: str = "full", **changes: object
) -> tuple[TransferMethod, TaskLearner]:
    method = TransferMethod(freeze=freeze, dropout=0.0, **changes)  # type: ignore[arg-type]
    learner = method.learner(encoder or bert(num_layers=3, dropout=0.0), head=labels_head(2), seed=0)  # type: ignore[arg-type]
    learner.arrange(_batch())
    return method, learner


def _train(method: TransferMethod, learner: TaskLearner, make: type[Optimizer] = AdamW, steps: int = 4) -> Optimizer:
    optimizer = make(learner=learner, learning_rate=0.01, lr_scales=method.lr_scales(learner))  # type: ignore[call-arg]
    learner.train()
    for step in range(steps):
        learner.on_progress(step / steps)
        losses, _ = learner.losses(_batch(step))
        optimizer.zero_grad()
        (losses["classification"].sum / losses["classification"].count).backward()
        optimizer.step()
    return optimizer


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _peaks(optimizer: Optimizer, learner: TaskLearner) -> dict[str, float]:
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    groups = [group for part in optimizer.parts for group in part.param_groups]
    return {names[id(parameter)]: group["peak_lr"] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
@pytest.mark.parametrize("freeze", ["full", "gradual"])
def test_frozen_embeddings_stay_bit_for_bit_and_no_optimiser_knows_them(make: type[Optimizer], freeze: str) -> None:
    method, learner = _arranged(freeze=freeze, embedding_rate=0, **NEW)
    before = _state(learner)
    optimizer = _train(method, learner, make)
    after = _state(learner)
    same = {name for name in before if torch.equal(before[name], after[name])}
    embeddings = {name for name in before if name.startswith("encoder.embeddings.")}
    assert len(embeddings) == 5  # three tables, and the norm's gain and offset
    assert same & {name for name in before if not name.startswith("encoder.pooler.")} == embeddings
    assert not embeddings & set(_peaks(optimizer, learner))
    assert all(learner.get_parameter(name).grad is None for name in embeddings)


def test_the_embeddings_of_frozen_embeddings_have_no_graph() -> None:
    _, learner = _arranged(gpt(), embedding_rate=0, pooling="mean")
    layers = learner.encoder(_batch().packed).layers
    assert layers[0].grad_fn is None
    assert layers[1].grad_fn is not None


def test_only_rows_in_use_are_learnt_where_embeddings_learn_at_all() -> None:
    _, learner = _arranged(embedding_rate=0)
    assert not train_used_rows(learner.encoder, SOURCE.encoded.tokens_T)
    _, learner = _arranged(embedding_rate=0.5)
    assert train_used_rows(learner.encoder, SOURCE.encoded.tokens_T)
    learner.arrange(_batch())
    method = TransferMethod(freeze="full", embedding_rate=0.5)
    scales = method.lr_scales(learner)
    assert scales["encoder.embeddings.token.rows"] == scales["encoder.embeddings.position.weight"] == 0.5


@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
def test_rates_in_closed_form(make: type[Optimizer]) -> None:
    """Three layers: decay ** depth, times the factor of the embeddings; the head's own factor, and the pooler's 1."""
    method, learner = _arranged(layer_decay=0.8, embedding_rate=0.25, head_rate=3.0)
    optimizer = make(learner=learner, learning_rate=1e-3, lr_scales=method.lr_scales(learner))  # type: ignore[call-arg]
    peaks = _peaks(optimizer, learner)
    assert set(peaks) == {name for name, _ in learner.named_parameters()}
    for name, peak in peaks.items():
        if name.startswith("encoder.embeddings."):
            factor = 0.25 * 0.8**4
        elif name.startswith("encoder.stack.layers."):
            factor = 0.8 ** (3 - int(name.split(".")[3]))
        else:
            factor = 1.0 if name.startswith("encoder.pooler.") else 3.0
        assert peak == pytest.approx(1e-3 * factor), name
    assert optimizer.learning_rate_at(1.0) == pytest.approx(1e-3)  # what is logged


def test_what_mixes_and_composes_is_as_new_as_the_head() -> None:
    method, learner = _arranged(head_rate=2.0, **NEW)
    fast = {name for name, scale in method.lr_scales(learner).items() if scale == 2.0}
    assert fast == {name for name, _ in learner.named_parameters() if not name.startswith("encoder.")}
    assert {"reading.scalars", "reading.gamma", "composition.score.weight", "head.output.bias"} <= fast


def test_an_embedding_layer_that_is_all_that_is_read_is_the_embedding_layer() -> None:
    method, learner = _arranged(layers=0, pooling="mean", embedding_rate=0.5)
    scales = method.lr_scales(learner)
    assert {name for name, scale in scales.items() if scale == 0.5} == {
        name for name in scales if name.startswith("encoder.embeddings.")
    }


def test_rates_of_one_change_nothing() -> None:
    learners = []
    for changes in ({}, {"embedding_rate": 1.0, "head_rate": 1.0}):
        method, learner = _arranged(**changes)
        _train(method, learner)
        learners.append(_state(learner))
    bare = TransferMethod(freeze="full", dropout=0.0).learner(
        bert(num_layers=3, dropout=0.0), head=labels_head(2), seed=0
    )
    optimizer = AdamW(learner=bare, learning_rate=0.01)  # no rates by layer at all
    for step in range(4):
        losses, _ = bare.losses(_batch(step))
        optimizer.zero_grad()
        (losses["classification"].sum / losses["classification"].count).backward()
        optimizer.step()
    learners.append(_state(bare))
    for name, tensor in learners[0].items():
        assert all(torch.equal(tensor, other[name]) for other in learners[1:]), name


@pytest.mark.parametrize("rate", [-0.1, 10.5, float("nan")])
def test_an_embedding_rate_out_of_range_is_refused(rate: float) -> None:
    with refuses(ConfigError, f"transfer.embedding_rate={rate}", "[0, 10]"):
        TransferMethod(freeze="full", embedding_rate=rate)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_head_that_does_not_learn_is_refused(rate: float) -> None:
    with refuses(ConfigError, f"transfer.head_rate={rate}"):
        TransferMethod(freeze="full", head_rate=rate)


@pytest.mark.parametrize("key", ["embedding_rate", "head_rate"])
def test_a_frozen_encoder_has_one_rate(key: str) -> None:
    with refuses(ConfigError, f"transfer.{key}=0.5", "transfer.freeze=frozen"):
        TransferMethod(freeze="frozen", **{key: 0.5})  # type: ignore[arg-type]
