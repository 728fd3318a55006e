"""What a head over a frozen encoder sees: features of mean 0 and deviation 1, whatever the scale of the vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes.tasks import bert, labels_head, random_examples
from support.refusals import refuses

from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.weights import load_weights, weights
from lmtransfer.transfer.features import FeatureTable, compute_features
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.standardising import Standardising

ENCODED = random_examples(40)


def _learner(**changes: object) -> TaskLearner:
    settings: dict[str, object] = {"freeze": "frozen", "pooling": "mean", "dropout": 0.0, "standardise": True}
    method = TransferMethod(**{**settings, **changes})  # type: ignore[arg-type]
    return method.learner(bert(), head=labels_head(2), seed=0)


def _scaled(table: FeatureTable, factor: float, shift: float) -> FeatureTable:
    return FeatureTable((table.values * factor + shift).astype(np.float32), table.starts, table.lengths)


def _trained(table: FeatureTable, **changes: object) -> torch.Tensor:
    """Logits of a probe after a few steps on these features."""
    learner, source = _learner(**changes), TaskSource(ENCODED, table)
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
    scale = Standardising(dim=3)
    scale.fit(parts)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(scale.mean.numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scale.deviation.numpy(), exact.std(0), rtol=1e-5)
    out = scale(torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(out, (exact - exact.mean(0)) / exact.std(0), atol=1e-4)


def test_a_constant_feature_says_nothing() -> None:
    values = torch.tensor([[3.0, 0.0, 7.0], [3.0, 0.0, 7.00001], [3.0, 0.0, 6.99999]])
    scale = Standardising(dim=3)
    scale.fit([values])
    assert scale(values).abs().max() < 1e-4
    with refuses(ValueError, "features"):
        scale.fit([values[:0]])


@pytest.mark.parametrize(("factor", "shift"), [(1e-3, 0.0), (100.0, 0.0), (1.0, 2.0)])
def test_a_probe_does_not_depend_on_the_scale_of_the_vectors(factor: float, shift: float) -> None:
    table = compute_features(_learner(), TaskSource(ENCODED), folder=None)
    other = _scaled(table, factor, shift)
    torch.testing.assert_close(_trained(other), _trained(table), atol=1e-3, rtol=1e-3)
    raw = _trained(other, standardise=False), _trained(table, standardise=False)
    assert (raw[0] - raw[1]).abs().max() > 0.1


@pytest.mark.parametrize("most_rows", [1, 7, 10_000])
@pytest.mark.parametrize("pooling", ["mean", "bilstm"])
def test_parts_of_features_are_all_of_them_in_order(most_rows: int, pooling: str) -> None:
    table = compute_features(_learner(pooling=pooling, lstm_dim=4), TaskSource(ENCODED), folder=None)
    chosen = np.array([7, 3, 30])
    part = table.select(chosen)
    torch.testing.assert_close(torch.cat(list(part.parts(most_rows=most_rows))), part.rows(np.arange(3)))


@pytest.mark.parametrize("hidden_dim", [None, 8])
def test_folded_into_the_head_it_says_the_same(hidden_dim: int | None) -> None:
    learner = _learner(head_hidden_dim=hidden_dim).eval()
    assert learner.standardising is not None
    source = TaskSource(ENCODED)
    batch = source.build(0, source.plan(0), range(40))
    learner.standardising.fit([learner.fixed(batch)])
    expected = learner.predict(batch)
    learner.fold()
    assert learner.standardising is None
    assert not [name for name in weights(learner) if name.startswith("standardising")]
    torch.testing.assert_close(learner.predict(batch), expected, atol=1e-5, rtol=1e-4)


def test_it_is_saved_with_the_learner() -> None:
    learner, again = _learner().eval(), _learner().eval()
    source = TaskSource(ENCODED)
    batch = source.build(0, source.plan(0), range(40))
    learner.standardising.fit([learner.fixed(batch)])
    load_weights(again, weights(learner))
    torch.testing.assert_close(again.predict(batch), learner.predict(batch), rtol=0, atol=0)


@pytest.mark.parametrize("changes", [{"layers": "mix"}, {"pooling": "bilstm"}, {"pooling": "attention"}])
def test_what_is_not_fixed_is_read_as_it_is(changes: dict[str, object]) -> None:
    assert _learner(**changes).standardising is None
    assert not any(isinstance(module, Standardising) for module in _learner(**changes).modules())
