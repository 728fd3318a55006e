"""Metrics and statistics compared with scikit-learn and scipy, on random answers and in edge cases."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.metrics.labels import explain_undefined, metric_value
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.verdicts.intervals import critical_value, two_sided_p_value


def answers(seed: int, num_labels: int, num: int = 97) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions, about half of them right, and targets; the last two of many labels do not occur."""
    draw = np.random.default_rng(seed)
    most = num_labels - 2 if num_labels > 3 else num_labels
    targets = draw.integers(0, most, num)
    return np.where(draw.random(num) < 0.5, targets, draw.integers(0, most, num)), targets


CLASSIFICATION: dict[str, Callable[[np.ndarray, np.ndarray, int], float]] = {
    "accuracy": lambda gold, said, positive: sklearn.accuracy_score(gold, said),
    "matthews": lambda gold, said, positive: sklearn.matthews_corrcoef(gold, said),
    "macro_f1": lambda gold, said, positive: sklearn.f1_score(gold, said, average="macro"),
    "f1": lambda gold, said, positive: sklearn.f1_score(gold == positive, said == positive, zero_division=0.0),
}
PERFECT = np.array([0, 2] * 20), np.array([0, 2] * 20)  # label 1 is absent on both sides
CONSTANT = np.full(30, 2), np.array([0, 1, 2] * 10)
EDGES = [([0, 0, 0, 0], [0, 0, 0, 0]), ([1, 1, 1], [0, 0, 0]), ([0, 0, 0], [1, 0, 1]), ([1], [1])]


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_metrics_of_labels_are_those_of_scikit_learn(name: str) -> None:
    drawn = (answers(seed, num_labels) for seed in range(3) for num_labels in (2, 3, 7))
    for said, gold in (*drawn, PERFECT, CONSTANT, *((np.array(said), np.array(gold)) for said, gold in EDGES)):
        for positive in range(3) if name == "f1" else [1]:
            found = metric_value(name, said.astype(float), gold.astype(float), positive=positive)
            assert found == pytest.approx(CLASSIFICATION[name](gold, said, positive), abs=1e-15)


def test_perfect_answers_have_a_perfect_macro_f1_whatever_labels_are_absent() -> None:
    examples = [TextExample(f"dev:{i}", f"text {i}", label=label) for i, label in enumerate([0, 3, 3, 0])]
    task = TextClassification(
        name="c", labels=["a", "b", "c", "d"], train="none.tsv", text_column="t", label_column="l",
        metrics=["macro_f1", "matthews"],
    )  # fmt: skip
    right = [LabelAnswer(example.label or 0, "") for example in examples]
    assert task.score(examples, right) == {"macro_f1": 1.0, "matthews": 1.0}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ties", [False, True])
def test_correlations(seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    targets = draw.integers(0, 6, 80).astype(float) if ties else draw.normal(size=80) + 1e7
    predictions = 0.4 * targets + draw.normal(size=80)
    predictions = predictions.round(1) if ties else predictions
    for name, reference in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        assert metric_value(name, predictions, targets) == pytest.approx(reference(predictions, targets).statistic)
        assert explain_undefined(name, predictions, targets) == ""


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("constant", [0.1, 2.7123415, 1e7 / 3])
def test_a_correlation_with_a_constant_is_0_and_says_so(name: str, constant: float) -> None:
    varied, same = np.sort(np.random.default_rng(0).normal(size=1379)), np.full(1379, constant)
    for said, gold, words in ((same, varied, "prediction"), (varied, same, "gold answer"), (same, same, "prediction")):
        assert metric_value(name, said, gold) == 0.0
        with warnings.catch_warnings(record=True) as theirs:
            warnings.simplefilter("always")
            assert np.isnan(getattr(stats, f"{name}r")(said, gold).statistic)
        assert theirs
        assert words in explain_undefined(name, said, gold)


@pytest.mark.parametrize("degrees", [1.0, 1.37, 4.0, 9.0, 41.3, 2000.5])
def test_students_distribution(degrees: float) -> None:
    for t in (0.0, 0.3, 2.776, 40.0):
        assert two_sided_p_value(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-8)
    for level in (0.5, 0.05, 0.05 / 24, 1e-6):
        assert critical_value(level, degrees) == pytest.approx(stats.t.isf(level / 2, degrees), rel=1e-8)


SETS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "micro_f1": lambda gold, said: sklearn.f1_score(gold, said > 0.5, average="micro", zero_division=0.0),
    "macro_f1": lambda gold, said: sklearn.f1_score(gold, said > 0.5, average="macro", zero_division=0.0),
    "average_precision": lambda gold, said: sklearn.average_precision_score(gold, said, average="macro"),
}


@pytest.mark.filterwarnings("ignore:No positive class")
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_sets_of_labels(seed: int, ties: bool, name: str) -> None:
    draw = np.random.default_rng(seed)
    gold = (draw.random((97, 5)) < (0.5, 0.3, 0.1, 0.02, 0.0)).astype(int)  # the last label never occurs
    said = np.clip(0.4 * gold + draw.normal(0.3, 0.2, gold.shape), 0, 1)
    said[:, 4] = 0.0
    said = said.round(1) if ties else said
    assert metric_value(name, said, gold) == pytest.approx(SETS[name](gold, said))
    absent = "" if name == "micro_f1" else f"counts {int((gold.sum(0) == 0).sum())} of 5 labels as 0"
    assert absent in explain_undefined(name, np.where(gold > 0, 1.0, 0.0), gold)


@pytest.mark.parametrize("name", SETS)
def test_sets_of_labels_at_the_edges(name: str) -> None:
    assert metric_value(name, np.zeros((3, 2)), np.zeros((3, 2))) == 0.0
    assert metric_value(name, np.eye(2), np.eye(2)) == 1.0


@pytest.mark.parametrize("name", [*CLASSIFICATION, "pearson", "spearman", *SETS])
def test_nothing_seen_is_no_number(name: str) -> None:
    empty = np.zeros((0, 2) if name in SETS else 0)
    with pytest.raises(ValueError, match=name):
        metric_value(name, empty, empty)
