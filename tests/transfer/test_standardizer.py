"""Standardized head inputs, with a frozen or a trained encoder: mean 0 and deviation 1 at any scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes.tasks import bert, labels_head, random_examples
from support.refusals import refuses
from torch import Tensor

from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import HeadSpec, TaggingSpec
from lmtransfer.tasks.source import TaskBatch, TaskSource
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.weights import load_weights, weights
from lmtransfer.transfer.features import FeatureTable, compute_features, sample_features
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.standardizer import Standardizer

ENCODED = random_examples(40)


def _probe(**changes: object) -> TaskLearner:
    settings: dict[str, object] = {"freeze": "frozen", "pooling": "mean", "dropout": 0.0, "standardise": True}
    method = TransferMethod(**{**settings, **changes})  # type: ignore[arg-type]
    return method.learner(bert(), head=labels_head(2), seed=0)


def _scaled(table: FeatureTable, factor: float, shift: float) -> FeatureTable:
    return FeatureTable((table.values * factor + shift).astype(np.float32), table.starts, table.lengths)


def _trained(table: FeatureTable, **changes: object) -> torch.Tensor:
    """Return the logits of a probe after a few steps on these features."""
    learner, source = _probe(**changes), TaskSource(ENCODED, table)
    if learner.standardising is not None:
        learner.standardising.fit(table.parts())
    optimizer = torch.optim.AdamW(learner.head.parameters(), lr=0.01)
    for step in range(30):
        losses, _ = learner.losses(source.build(0, source.plan(0), [(7 * step + i) % 40 for i in range(10)]))
        optimizer.zero_grad()
        losses["classification"].sum.backward()
        optimizer.step()
    return learner.eval().predict(source.build(0, source.plan(0), range(40)))


@pytest.mark.parametrize("sizes", [[100], [1, 0, 98, 1], [33, 67]])
def test_mean_and_deviation_are_those_of_all_rows(sizes: list[int]) -> None:
    values = np.random.default_rng(0).normal([5.0, -1e-4, 1e3], [2.0, 1e-5, 1.0], (100, 3)).astype(np.float32)
    parts = [torch.from_numpy(part) for part in np.split(values, np.cumsum(sizes)[:-1])]
    scale = Standardizer(dim=3)
    scale.fit(parts)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(scale.mean.numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scale.deviation.numpy(), exact.std(0), rtol=1e-5)
    out = scale(torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(out, (exact - exact.mean(0)) / exact.std(0), atol=1e-4)


def test_a_constant_feature_says_nothing() -> None:
    values = torch.tensor([[3.0, 0.0, 7.0], [3.0, 0.0, 7.00001], [3.0, 0.0, 6.99999]])
    scale = Standardizer(dim=3)
    scale.fit([values])
    assert scale(values).abs().max() < 1e-4
    with refuses(ValueError, "features"):
        scale.fit([values[:0]])


@pytest.mark.parametrize(("factor", "shift"), [(1e-3, 0.0), (100.0, 0.0), (1.0, 2.0)])
def test_a_probe_does_not_depend_on_the_scale_of_the_vectors(factor: float, shift: float) -> None:
    table = compute_features(_probe(), TaskSource(ENCODED), folder=None)
    other = _scaled(table, factor, shift)
    torch.testing.assert_close(_trained(other), _trained(table), atol=1e-3, rtol=1e-3)
    raw = _trained(other, standardise=False), _trained(table, standardise=False)
    assert (raw[0] - raw[1]).abs().max() > 0.1


@pytest.mark.parametrize("most_rows", [1, 7, 10_000])
@pytest.mark.parametrize("pooling", ["mean", "bilstm"])
def test_parts_of_features_are_all_of_them_in_order(most_rows: int, pooling: str) -> None:
    table = compute_features(_probe(pooling=pooling, lstm_dim=4), TaskSource(ENCODED), folder=None)
    chosen = np.array([7, 3, 30])
    part = table.select(chosen)
    torch.testing.assert_close(torch.cat(list(part.parts(most_rows=most_rows))), part.rows(np.arange(3)))


def test_it_is_saved_with_the_learner() -> None:
    learner, again, batch = _probe().eval(), _probe().eval(), _batch()
    learner.standardising.fit([learner.frozen_features(batch)])
    load_weights(again, weights(learner))
    torch.testing.assert_close(again.predict(batch), learner.predict(batch), rtol=0, atol=0)


@pytest.mark.parametrize("changes", [{"layers": "mix"}, {"pooling": "bilstm"}, {"pooling": "attention"}])
def test_what_is_not_fixed_is_read_as_it_is(changes: dict[str, object]) -> None:
    assert _probe(**changes).standardising is None
    assert not any(isinstance(module, Standardizer) for module in _probe(**changes).modules())


READINGS: list[dict[str, Any]] = [
    {"pooling": "family"},
    {"pooling": "mean"},
    {"pooling": "max", "layers": "mix", "mix_layer_norm": True},
    {"pooling": "attention", "attention_dim": 4},
    {"pooling": "cls", "layers": 1, "head_hidden_dim": 8},
]


def _learner(head: HeadSpec | None = None, **changes: Any) -> TaskLearner:
    settings: dict[str, Any] = {"freeze": "full", "pooling": "mean", "dropout": 0.0, "standardise": True}
    method = TransferMethod(**{**settings, **changes})
    return method.learner(bert(), head=head or labels_head(2), seed=0)


def _fitted(encoded: EncodedExamples = ENCODED, **more: Any) -> TaskLearner:
    learner = _learner(**more)
    assert learner.standardising is not None
    learner.standardising.fit(sample_features(learner, TaskSource(encoded)))
    return learner


def _batch(encoded: EncodedExamples = ENCODED, rows: Any = range(40)) -> TaskBatch:
    source = TaskSource(encoded)
    return source.build(0, source.plan(0), rows)


def _seen_by_head(learner: TaskLearner, batch: TaskBatch) -> Tensor:
    """Return the tensor that reaches the head."""
    found: list[Tensor] = []
    hook = learner.head.register_forward_pre_hook(lambda _, given: found.append(given[0].detach()))
    learner.eval().logits(batch)
    hook.remove()
    return found[0]


def _train(learner: TaskLearner, *, steps: int = 5) -> None:
    learner.arrange(_batch())
    learner.train()
    optimizer = AdamW(learner=learner, learning_rate=0.01)
    for step in range(steps):
        losses, _ = learner.losses(_batch(rows=[(7 * step + i) % 40 for i in range(10)]))
        optimizer.zero_grad()
        losses["classification"].sum.backward()
        optimizer.step()


@pytest.mark.parametrize("freeze", ["full", "gradual"])
@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: "-".join(map(str, reading.values())))
def test_a_head_begins_with_features_of_mean_0_and_deviation_1(freeze: str, reading: dict[str, Any]) -> None:
    raw = _seen_by_head(_learner(standardise=False, freeze=freeze, **reading), _batch()).double()
    seen = _seen_by_head(_fitted(freeze=freeze, **reading), _batch()).double()
    by_hand = (raw - raw.mean(0)) / raw.std(0, correction=0)
    torch.testing.assert_close(seen, by_hand, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(seen.mean(0), torch.zeros_like(seen[0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones_like(seen[0]), atol=1e-3, rtol=0)


def test_tokens_of_a_tagger_are_standardised_over_all_tokens() -> None:
    spec = TaggingSpec(3)
    raw = _learner(spec, standardise=False).eval().head_input(_batch()).double()
    assert len(raw) == ENCODED.lengths.sum()
    fitted = _fitted(head=spec)
    torch.testing.assert_close(fitted.standardising.mean.double(), raw.mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fitted.standardising.deviation.double(), raw.std(0, correction=0), rtol=1e-4, atol=0)


def test_of_many_examples_some_at_even_distances_are_read() -> None:
    learner = _learner()
    parts = list(sample_features(learner, TaskSource(ENCODED), most_examples=4, max_tokens=20))
    rows = [0, 13, 26, 39]
    by_length = sorted(rows, key=lambda row: ENCODED.lengths[row])
    expected = learner.eval().head_input(_batch(rows=by_length))
    found = torch.cat(parts)
    assert sorted(found[:, 0].tolist()) == pytest.approx(sorted(expected[:, 0].tolist()), abs=1e-6)
    assert len(parts) > 1


def test_taking_statistics_leaves_learner_and_generator_as_they_were() -> None:
    learner = _learner()
    before, state = {name: tensor.clone() for name, tensor in weights(learner).items()}, torch.get_rng_state()
    features = list(sample_features(learner, TaskSource(ENCODED)))
    assert not any(part.requires_grad for part in features)
    assert learner.training
    assert learner.encoder.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_statistics_stay_while_the_encoder_learns() -> None:
    learner = _fitted()
    scale = learner.standardising
    before = scale.mean.clone(), scale.deviation.clone()
    seen = _seen_by_head(learner, _batch())
    _train(learner)
    assert torch.equal(scale.mean, before[0])
    assert torch.equal(scale.deviation, before[1])
    assert not torch.allclose(_seen_by_head(learner, _batch()), seen, atol=1e-2)


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: "-".join(map(str, reading.values())))
def test_folded_it_says_the_same_and_is_a_learner_without(reading: dict[str, Any]) -> None:
    learner = _fitted(**reading)
    _train(learner)
    expected = learner.eval().predict(_batch())
    learner.fold()
    assert learner.standardising is None
    plain = _learner(standardise=False, **reading).eval()
    load_weights(plain, weights(learner))  # the tensors match one by one
    torch.testing.assert_close(plain.predict(_batch()), expected, atol=2e-5, rtol=1e-4)


def test_each_encoder_has_statistics_of_its_own() -> None:
    first, other = _fitted(), _learner()
    with torch.no_grad():
        for parameter in other.encoder.parameters():
            parameter.mul_(3)
    other.standardising.fit(sample_features(other, TaskSource(ENCODED)))
    seen = _seen_by_head(other, _batch())
    assert np.allclose(seen.std(0, correction=0), 1, atol=1e-3)
    assert not torch.allclose(first.standardising.deviation, other.standardising.deviation)
