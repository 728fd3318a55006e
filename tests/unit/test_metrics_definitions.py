"""Each metric against its definition, computed the slow and obvious way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from refusals import refuses

from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.confusion import F1, Accuracy, Matthews
from lmtransfer.metrics.correlation import Pearson, Spearman, mean_ranks
from lmtransfer.metrics.names import make_metric

RNG = np.random.default_rng(0)


def _stream(metric: Metric, predictions: np.ndarray, targets: np.ndarray, size: int) -> float:
    for start in range(0, len(predictions), size):
        metric.update(predictions[start : start + size], targets[start : start + size])
    return metric.compute()


def _f1(predictions: list[int], targets: list[int], label: int) -> float:
    hits = sum(p == t == label for p, t in zip(predictions, targets, strict=True))
    if hits == 0:
        return 0.0
    precision, recall = hits / predictions.count(label), hits / targets.count(label)
    return 2 * precision * recall / (precision + recall)


def test_accuracy_is_the_fraction_right() -> None:
    predictions, targets = RNG.integers(0, 3, 50), RNG.integers(0, 3, 50)
    expected = sum(int(p == t) for p, t in zip(predictions, targets, strict=True)) / 50
    assert _stream(Accuracy(num_labels=3), predictions, targets, 7) == pytest.approx(expected)


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    predictions, targets = RNG.integers(0, 3, 60), RNG.integers(0, 3, 60)
    for label in range(3):
        expected = _f1(predictions.tolist(), targets.tolist(), label)
        assert _stream(F1(num_labels=3, positive=label), predictions, targets, 11) == pytest.approx(expected)
    macro = sum(_f1(predictions.tolist(), targets.tolist(), label) for label in range(3)) / 3
    assert _stream(make_metric("macro_f1", num_labels=3), predictions, targets, 60) == pytest.approx(macro)


def test_f1_without_any_positive_is_zero() -> None:
    assert _stream(F1(num_labels=2), np.zeros(4, int), np.zeros(4, int), 2) == 0.0


def test_matthews_of_two_labels_is_the_textbook_formula() -> None:
    predictions, targets = RNG.integers(0, 2, 40), RNG.integers(0, 2, 40)
    tp = int(((predictions == 1) & (targets == 1)).sum())
    tn = int(((predictions == 0) & (targets == 0)).sum())
    fp = int(((predictions == 1) & (targets == 0)).sum())
    fn = int(((predictions == 0) & (targets == 1)).sum())
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert _stream(Matthews(num_labels=2), predictions, targets, 9) == pytest.approx(expected)
    assert _stream(Matthews(num_labels=2), np.ones(4, int), np.array([0, 1, 0, 1]), 4) == 0.0


def test_matthews_of_three_labels_is_the_correlation_of_one_hot_rows() -> None:
    predictions, targets = RNG.integers(0, 3, 80), RNG.integers(0, 3, 80)
    x, y = np.eye(3)[predictions], np.eye(3)[targets]
    x, y = x - x.mean(0), y - y.mean(0)
    expected = (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum())
    assert _stream(Matthews(num_labels=3), predictions, targets, 13) == pytest.approx(expected)


def test_pearson_is_stable_and_right() -> None:
    x = RNG.normal(size=101) + 1e7
    y = 0.3 * (x - 1e7) + RNG.normal(size=101)
    assert _stream(Pearson(), x, y, 10) == pytest.approx(float(np.corrcoef(x, y)[0, 1]), abs=1e-8)
    assert _stream(Pearson(), np.ones(5), np.arange(5.0), 5) == 0.0


@pytest.mark.parametrize("constant", [0.1, 0.3, 2.7123415, 1e7 / 3])
def test_pearson_of_a_constant_is_0_however_its_mean_is_rounded(constant: float) -> None:
    targets = np.sort(RNG.normal(size=5749))
    constants = np.full(5749, constant)
    for size in (7, 1379, 4096):
        assert _stream(Pearson(), constants, targets, size) == 0.0
        assert _stream(Pearson(), targets, constants, size) == 0.0
        assert _stream(Pearson(), constants, np.full(5749, 0.3), size) == 0.0


def test_mean_ranks_share_ties() -> None:
    values = np.array([2.0, 1.0, 2.0, 5.0])
    expected = [np.mean([r for r, v in enumerate(sorted(values)) if v == value]) for value in values]
    assert mean_ranks(values).tolist() == expected


def test_spearman_is_pearson_of_ranks_and_sees_only_order() -> None:
    x, y = RNG.normal(size=50), RNG.normal(size=50)
    ranks_x = [sum(other < value for other in x) for value in x]
    ranks_y = [sum(other < value for other in y) for value in y]
    expected = float(np.corrcoef(ranks_x, ranks_y)[0, 1])
    assert _stream(Spearman(), x, y, 8) == pytest.approx(expected)
    assert _stream(Spearman(), np.exp(x), y, 50) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_nothing_seen_is_no_number(name: str) -> None:
    with refuses(ValueError, name):
        make_metric(name, num_labels=2).compute()
