from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.heads import table
from fakes.tasks import bert, gpt, labels_head, random_examples
from support.refusals import refuses
from torch import nn
from torch.nn import functional

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import FamilyHead
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.tasks.text.classification import Classification
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.transfer.features import compute_features
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.scoring import evaluate

POOLINGS = ["family", "cls", "last_token", "mean", "max", "bilstm", "attention"]
ENCODED = random_examples(23)
LABELS = table(ENCODED.targets)[:, 0]


class Words(Classification):
    def examples(self, split: str) -> list[TextExample]:
        return []


TASK = Words(name="words", labels=["without", "with"])


def _learner(freeze: str = "full", encoder: nn.Module | None = None, **changes: object) -> TaskLearner:
    method = TransferMethod(freeze=freeze, lstm_dim=8, attention_dim=8, **changes)  # type: ignore[arg-type]
    return method.learner(encoder or bert(), head=labels_head(2), seed=0)


def _batch(rows: Any) -> TaskBatch:
    source = TaskSource(ENCODED)
    return source.build(0, source.plan(0), rows)


def _hash(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in module.state_dict(keep_vars=True).items():
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    for name, buffer in module.named_buffers():
        digest.update(name.encode() + buffer.numpy().tobytes())
    return digest.hexdigest()


def _train(learner: TaskLearner, source: TaskSource, steps: int = 5) -> None:
    optimizer = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    learner.train()
    for step in range(steps):
        rows = [(7 * step + i) % len(source.encoded) for i in range(6)]
        losses, _ = learner.losses(source.build(0, source.plan(0), rows))
        optimizer.zero_grad()
        (losses["classification"].sum / losses["classification"].count).backward()
        optimizer.step()


class _Counting(nn.Module):
    """An encoder with a buffer that changes in training mode, like batch norm statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bert()
        self.register_buffer("seen", torch.zeros(()))
        self.dim, self.num_layers, self.attention = self.inner.dim, self.inner.num_layers, self.inner.attention
        self.pooler, self.family_head = None, FamilyHead(token="mean")

    def forward(self, batch, recurrent_state=None, output_positions=None):
        if self.training:
            self.seen += 1
        return self.inner(batch, recurrent_state, output_positions)


@pytest.mark.parametrize("pooling", ["mean", "bilstm", "family"])
def test_frozen_means_frozen(pooling: str) -> None:
    learner = _learner("frozen", encoder=_Counting(), pooling=pooling)
    before, head = _hash(learner.encoder), _hash(learner.head)
    batch = _batch([3, 1])
    first = learner.frozen_features(batch)
    _train(learner, TaskSource(ENCODED))
    assert _hash(learner.encoder) == before
    assert _hash(learner.head) != head
    assert not any(p.requires_grad for p in learner.encoder.parameters())
    assert not any(module.training for module in learner.encoder.modules())
    torch.testing.assert_close(learner.train().frozen_features(batch), first, rtol=0, atol=0)


def test_full_transfer_moves_the_encoder_and_its_buffers() -> None:
    learner = _learner("full", encoder=_Counting(), pooling="mean")
    before = _hash(learner.encoder)
    _train(learner, TaskSource(ENCODED), steps=1)
    assert learner.encoder.seen == 1
    assert _hash(learner.encoder) != before


def test_the_pooler_of_a_family_reads_the_last_layer() -> None:
    with refuses(ConfigError, "transfer.pooling=family", "transfer.layers=mix"):
        _learner(pooling="family", layers="mix")


@pytest.mark.parametrize(
    ("freeze", "pooling", "layers"),
    [
        *(("full", pooling, "last" if pooling == "family" else "mix") for pooling in POOLINGS),
        ("frozen", "mean", "mix"),
        ("frozen", "family", "last"),
    ],
)
def test_every_trainable_parameter_gets_a_gradient(freeze: str, pooling: str, layers: str) -> None:
    learner = _learner(freeze, pooling=pooling, layers=layers)
    losses, _ = learner.losses(_batch(range(20)))
    losses["classification"].sum.backward()
    without = [name for name, p in learner.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


@pytest.mark.parametrize(
    ("pooling", "layers"),
    [*((pooling, "mix") for pooling in POOLINGS if pooling != "family"), ("cls", "last"), ("mean", 0)],
)
def test_logits_of_a_batch_are_those_of_its_examples_alone(pooling: str, layers: str | int) -> None:
    learner = _learner(pooling=pooling, layers=layers, mix_layer_norm=True).eval()
    together = learner.predict(_batch(range(23)))
    alone = torch.cat([learner.predict(_batch([row])) for row in range(23)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_the_family_head_is_pooler_dropout_linear() -> None:
    learner = _learner(pooling="family").eval()
    batch = _batch(range(5))
    first = learner.encoder(batch.packed).last[batch.packed.starts_B]
    pooled = torch.tanh(functional.linear(first, *learner.encoder.pooler.dense.parameters()))
    expected = functional.linear(pooled, learner.head.output.weight, learner.head.output.bias)
    torch.testing.assert_close(learner.predict(batch), expected, atol=1e-5, rtol=1e-5)


def test_new_parameters_follow_the_seed_and_leave_the_generator_alone() -> None:
    method = TransferMethod(freeze="full", pooling="mean", head_hidden_dim=4)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    heads = [_hash(method.learner(bert(), head=labels_head(2), seed=seed).head) for seed in (0, 0, 1)]
    assert heads[0] == heads[1] != heads[2]
    torch.manual_seed(5)
    encoder = bert()
    torch.manual_seed(5)
    method.learner(encoder, head=labels_head(2), seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_the_loss_is_a_sum_and_a_count() -> None:
    learner = _learner().eval()
    batch = _batch([2, 5, 6])
    losses, recurrent_state = learner.losses(batch)
    expected = -torch.log_softmax(learner.predict(batch), dim=1)[torch.arange(3), batch.targets.labels].sum()
    torch.testing.assert_close(losses["classification"].sum, expected)
    assert losses["classification"].count == learner.counts(batch)["classification"] == 3
    assert recurrent_state is None


@pytest.mark.parametrize("folder", [None, "cache"])
@pytest.mark.parametrize(
    ("pooling", "layers", "shape"),
    [
        ("mean", "last", (23, 16)),
        ("family", "last", (23, 16)),
        ("cls", "mix", (23, 3, 16)),
        ("bilstm", 1, (int(ENCODED.lengths.sum()), 1, 16)),
        ("attention", "mix", (int(ENCODED.lengths.sum()), 3, 16)),
    ],
)
def test_cached_features_give_the_logits_of_the_encoder(
    pooling: str, layers: str | int, shape: tuple[int, ...], folder: str | None, tmp_path: Path
) -> None:
    learner = _learner("frozen", pooling=pooling, layers=layers, dropout=0.0).eval()
    place = None if folder is None else tmp_path / folder
    table = compute_features(learner, TaskSource(ENCODED), folder=place, max_tokens=40, max_bytes_in_memory=0)
    assert table.values.shape == shape
    assert isinstance(table.values, np.memmap) == (folder is not None)
    cached, rows = TaskSource(ENCODED, table), [5, 0, 22, 9]
    batch = cached.build(0, cached.plan(0), rows)
    expected = learner.predict(_batch(rows))
    torch.testing.assert_close(learner.predict(batch), expected, atol=1e-5, rtol=1e-5)
    chosen = np.array([9, 22, 1])
    part = TaskSource(ENCODED.select(chosen), table.select(chosen))
    again = learner.predict(part.build(0, part.plan(0), [1, 0]))
    torch.testing.assert_close(again, expected[[2, 3]], atol=1e-5, rtol=1e-5)


def test_batches_with_features_do_not_run_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner("frozen", pooling="mean")
    source = TaskSource(ENCODED, compute_features(learner, TaskSource(ENCODED), folder=None))

    def forward(*_: object, **__: object) -> None:
        raise AssertionError("the encoder was run")

    monkeypatch.setattr(learner.encoder, "forward", forward)
    _train(learner, source)


def test_features_of_an_encoder_that_learns_are_refused() -> None:
    with refuses(ValueError, "features"):
        compute_features(_learner("full"), TaskSource(ENCODED), folder=None)


@pytest.mark.parametrize("pooling", ["family", "bilstm"])
def test_evaluation_does_not_depend_on_the_batch_size(pooling: str) -> None:
    learner = _learner(pooling=pooling)
    results = [evaluate(learner, TASK, TaskSource(ENCODED), max_tokens=size) for size in (1, 60, 10_000)]
    assert learner.training
    for other in results[1:]:
        assert other.outputs.argmax(1).tolist() == results[0].outputs.argmax(1).tolist()
        assert other.metrics["accuracy"] == results[0].metrics["accuracy"]
        assert other.metrics["loss"] == pytest.approx(results[0].metrics["loss"], abs=1e-6)


def test_evaluation_is_the_mean_over_examples_in_their_own_order() -> None:
    learner = _learner().eval()
    result = evaluate(learner, TASK, TaskSource(ENCODED))
    logits = torch.cat([learner.predict(_batch([row])) for row in range(23)])
    labels = torch.from_numpy(LABELS)
    assert result.outputs.argmax(1).tolist() == logits.argmax(1).tolist()
    assert result.metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert result.metrics["loss"] == pytest.approx(float(functional.cross_entropy(logits, labels)), abs=1e-5)


def test_a_collapsed_learner_is_flagged() -> None:
    learner = _learner()
    with torch.no_grad():
        learner.head.output.bias.copy_(torch.tensor([0.0, 1e4]))
    assert evaluate(learner, TASK, TaskSource(ENCODED)).collapsed
    one_label = ENCODED.select(np.flatnonzero(LABELS == 1))
    assert not evaluate(learner, TASK, TaskSource(one_label)).collapsed


@pytest.mark.parametrize("build", [bert, gpt])
def test_a_learner_overfits_a_few_sentences(build: Callable[[], nn.Module]) -> None:
    learner = _learner(encoder=build(), pooling="family", dropout=0.0)
    encoded = random_examples(12, seed=3)
    source = TaskSource(encoded)
    optimizer = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(100):
        losses, _ = learner.losses(source.build(0, source.plan(0), range(12)))
        optimizer.zero_grad()
        losses["classification"].sum.backward()
        optimizer.step()
    assert evaluate(learner, TASK, source).metrics["accuracy"] == 1.0


def test_ranks_share_the_examples_and_agree_on_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner().eval()
    five = ENCODED.select(np.arange(5))
    whole = evaluate(learner, TASK, TaskSource(five))
    gathered: list[list[object]] = [[], []]

    def as_rank(rank: int, gather: Callable[[object], list[object]]):
        monkeypatch.setattr("lmtransfer.training.process_group.rank", lambda: rank)
        monkeypatch.setattr("lmtransfer.training.process_group.world_size", lambda: 2)
        monkeypatch.setattr("lmtransfer.training.process_group.gather", gather)
        return evaluate(learner, TASK, TaskSource(five), max_tokens=20)

    def record(value: object) -> list[object]:
        gathered[1].append(value)
        return [value, value]

    as_rank(1, record)
    others = iter(gathered[1])
    seen = as_rank(0, lambda value: [value, next(others)])
    assert seen.metrics == pytest.approx(whole.metrics)
    np.testing.assert_allclose(seen.outputs, whole.outputs, atol=1e-6)
