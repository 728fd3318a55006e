"""Metrics and statistics against scikit-learn, scipy and seqeval, on random answers and at the edges."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats
from seqeval import metrics as seqeval
from sklearn import metrics as sklearn

from lmtransfer.metrics.chunks import Chunks, chunk_scores
from lmtransfer.metrics.names import make_label_set_metric, make_metric
from lmtransfer.verdicts.student import critical, two_sided


def compute(name: str, predictions: np.ndarray, targets: np.ndarray, **options: int) -> float:
    """Our metric, fed in batches of 13."""
    metric = make_metric(name, **{"num_labels": 2, **options})
    for start in range(0, len(targets), 13):
        metric.update(predictions[start : start + 13], targets[start : start + 13])
    return metric.compute()


def answers(seed: int, num_labels: int, num: int = 97) -> tuple[np.ndarray, np.ndarray]:
    """Predictions, right in about half of the cases, and targets."""
    draw = np.random.default_rng(seed)
    targets = draw.integers(0, num_labels, num)
    return np.where(draw.random(num) < 0.5, targets, draw.integers(0, num_labels, num)), targets


@pytest.mark.parametrize("num_labels", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_classification(seed: int, num_labels: int) -> None:
    predictions, targets = answers(seed, num_labels)
    everything = range(num_labels)
    assert compute("accuracy", predictions, targets, num_labels=num_labels) == pytest.approx(
        sklearn.accuracy_score(targets, predictions)
    )
    assert compute("matthews", predictions, targets, num_labels=num_labels) == pytest.approx(
        sklearn.matthews_corrcoef(targets, predictions)
    )
    assert compute("macro_f1", predictions, targets, num_labels=num_labels) == pytest.approx(
        sklearn.f1_score(targets, predictions, labels=everything, average="macro")
    )
    each = sklearn.f1_score(targets, predictions, labels=everything, average=None)
    for label in everything:
        assert compute("f1", predictions, targets, num_labels=num_labels, positive=label) == pytest.approx(each[label])


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [([0, 0, 0, 0], [0, 0, 0, 0]), ([1, 1, 1], [0, 0, 0]), ([0, 0, 0], [1, 0, 1]), ([1, 1, 1], [1, 0, 1]), ([1], [1])],
    ids=["only negatives", "all wrong", "none predicted", "all predicted", "one example"],
)
def test_classification_at_the_edges(predictions: list[int], targets: list[int]) -> None:
    ours, gold = np.array(predictions), np.array(targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns where a ratio has no denominator
        f1 = sklearn.f1_score(gold, ours, labels=[0, 1], average=None, zero_division=0.0)
        matthews = sklearn.matthews_corrcoef(gold, ours)
    assert compute("accuracy", ours, gold) == sklearn.accuracy_score(gold, ours)
    assert compute("f1", ours, gold) == pytest.approx(f1[1])
    assert compute("macro_f1", ours, gold) == pytest.approx(f1.mean())
    assert compute("matthews", ours, gold) == pytest.approx(matthews)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ties", [False, True])
def test_correlations(seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    targets = draw.integers(0, 6, 80).astype(float) if ties else draw.normal(size=80)
    predictions = 0.4 * targets + draw.normal(size=80)
    predictions = predictions.round(1) if ties else predictions
    assert compute("pearson", predictions, targets) == pytest.approx(stats.pearsonr(predictions, targets).statistic)
    assert compute("spearman", predictions, targets) == pytest.approx(stats.spearmanr(predictions, targets).statistic)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prefixes", ["BI", "I", "BIES"])
def test_chunks(seed: int, prefixes: str) -> None:
    draw = np.random.default_rng(seed)
    labels = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in ("LOC", "PER", "creative-work"))]
    lengths = draw.integers(1, 15, 60)
    gold = [draw.integers(0, len(labels), length) for length in lengths]
    predicted = [np.where(draw.random(len(row)) < 0.7, row, draw.integers(0, len(labels), len(row))) for row in gold]
    chunks = Chunks(labels=labels)
    counts = np.sum([chunks.counts(ours, theirs) for ours, theirs in zip(predicted, gold, strict=True)], axis=0)
    scores = chunk_scores(*(int(count) for count in counts))
    named = [[[labels[tag] for tag in row] for row in side] for side in (gold, predicted)]
    assert scores["precision"] == pytest.approx(seqeval.precision_score(*named))
    assert scores["recall"] == pytest.approx(seqeval.recall_score(*named))
    assert scores["f1"] == pytest.approx(seqeval.f1_score(*named))


@pytest.mark.parametrize("degrees", [1.0, 1.37, 4.0, 9.0, 41.3, 2000.5])
def test_students_distribution(degrees: float) -> None:
    for t in (0.0, 0.3, 2.776, 40.0):
        assert two_sided(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-8)
    for level in (0.5, 0.05, 0.05 / 24, 1e-6):
        assert critical(level, degrees) == pytest.approx(stats.t.isf(level / 2, degrees), rel=1e-8)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_sets_of_labels(seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    gold = (draw.random((97, 5)) < (0.5, 0.3, 0.1, 0.02, 0.0)).astype(int)  # the last label never occurs
    said = np.clip(0.4 * gold + draw.normal(0.3, 0.2, gold.shape), 0, 1)
    said = said.round(1) if ties else said
    found = {}
    for name in ("micro_f1", "macro_f1", "average_precision"):
        metric = make_label_set_metric(name, num_labels=5)
        for start in range(0, 97, 13):
            metric.update(said[start : start + 13], gold[start : start + 13])
        found[metric.name] = metric.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the label that never occurs
        expected = {
            "micro_f1": sklearn.f1_score(gold, said > 0.5, average="micro"),
            "macro_f1": sklearn.f1_score(gold, said > 0.5, average="macro", zero_division=0),
            "average_precision": sklearn.average_precision_score(gold, said, average="macro"),
        }
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", ["micro_f1", "macro_f1", "average_precision"])
def test_sets_of_labels_at_the_edges(name: str) -> None:
    metric = make_label_set_metric(name, num_labels=2)
    with pytest.raises(ValueError, match=name):
        metric.compute()
    metric.update(np.zeros((3, 2)), np.zeros((3, 2)))
    assert metric.compute() == 0.0
    right = make_label_set_metric(name, num_labels=2)
    right.update(np.eye(2), np.eye(2))
    assert right.compute() == 1.0
