"""Compute a metric from kept predictions: over all or some examples, and the contribution of each example.

Shape legend: N examples, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lmtransfer.kept_predictions.scored import ScoredExamples
from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.confusion import F1, Accuracy, ConfusionMetric, Matthews
from lmtransfer.metrics.correlation import Pearson, Spearman
from lmtransfer.metrics.label_sets import LabelSetF1, f1_of_counts

#: Up to this many examples, a metric without a shortcut is recomputed once for each left-out example.
_MOST_LEFT_OUT = 5_000


def metric_value(examples: ScoredExamples, metric: str, rows: np.ndarray | None = None) -> float | None:
    """Recompute a metric from the predictions; None if they do not determine it.

    Args:
        examples: the predictions.
        metric: name of the metric.
        rows: numbers of the examples, as a bootstrap samples them (they may repeat); None: all examples.
    """
    if metric in examples.ratios:
        return examples.ratios[metric].value(rows)
    compute = _of_answers(examples, metric)
    if compute is None or (rows is None and not len(examples)) or (rows is not None and not len(rows)):
        return None
    predicted, gold = _by_example(examples)
    return compute(predicted, gold) if rows is None else compute(predicted[rows], gold[rows])


def contributions(examples: ScoredExamples, metric: str) -> np.ndarray | None:
    """Return the contribution of each example to a metric: float64, shape (N,), whose mean is the metric.

    For a mean the contributions are its terms. For a ratio of sums they are its linearisation. For any other metric
    they are the jackknife's pseudo-values without the bias correction (Efron & Tibshirani 1993, chapter 11). In all
    three cases their standard deviation divided by the root of N is a standard error of the metric.

    Args:
        examples: the predictions.
        metric: name of the metric.

    Returns:
        None if the predictions do not determine the metric, or the metric is not defined on them.
    """
    value, num = metric_value(examples, metric), len(examples)
    if value is None or not math.isfinite(value):
        return None
    ratio = examples.ratios.get(metric)
    if ratio is not None:
        return value + (ratio.parts - value * ratio.counts) / ratio.counts.mean()
    left_out = _left_out(examples, metric)
    if left_out is None:
        return None
    return value + (num - 1) * (left_out.mean() - left_out)


def _left_out(examples: ScoredExamples, metric: str) -> np.ndarray | None:
    """The metric with each example left out in turn, shape (N,)."""
    compute, num = _of_answers(examples, metric), len(examples)
    if compute is None or num < 2:
        return None
    predicted, gold = _by_example(examples)
    if examples.kind == "multi_label":
        right_NC, total_NC = predicted * gold, predicted + gold
        return f1_of_counts(right_NC.sum(0) - right_NC, total_NC.sum(0) - total_NC, average="macro")
    if examples.kind == "classification":  # examples with equal label and answer are interchangeable
        _, firsts, which = np.unique(np.stack([predicted, gold]), axis=1, return_index=True, return_inverse=True)
        values = [compute(np.delete(predicted, row), np.delete(gold, row)) for row in firsts]
        return np.array(values)[which.reshape(-1)]
    if num > _MOST_LEFT_OUT:
        return None
    return np.array([compute(np.delete(predicted, row), np.delete(gold, row)) for row in range(num)])


def _by_example(examples: ScoredExamples) -> tuple[np.ndarray, np.ndarray]:
    """Answers and gold answers, shape (N,), or (N, C) for sets of labels."""
    if examples.kind != "multi_label":
        return examples.predicted, examples.gold
    shape = len(examples), len(examples.labels)
    return examples.predicted.reshape(shape), examples.gold.reshape(shape)


def _of_answers(examples: ScoredExamples, metric: str) -> Callable[[np.ndarray, np.ndarray], float] | None:
    """Return a function that computes the metric from answers and gold answers; None if the metric has no such form."""
    num_labels = len(examples.labels)
    if examples.kind == "classification":
        confusions: dict[str, Callable[[], ConfusionMetric]] = {
            "accuracy": lambda: Accuracy(num_labels=num_labels),
            "f1": lambda: F1(num_labels=num_labels, positive=examples.positive),
            "macro_f1": lambda: F1(num_labels=num_labels, positive="macro"),
            "matthews": lambda: Matthews(num_labels=num_labels),
        }
        return _computed(confusions[metric]) if metric in confusions else None
    if examples.kind == "multi_label" and metric == "macro_f1":
        return _computed(lambda: LabelSetF1(num_labels=num_labels, average="macro"))
    correlations: dict[str, Callable[[], Pearson | Spearman]] = {"pearson": Pearson, "spearman": Spearman}
    if examples.kind == "regression" and metric in correlations:
        return _computed(correlations[metric])
    return None


def _computed(
    make: Callable[[], Metric],
) -> Callable[[np.ndarray, np.ndarray], float]:
    def compute(predicted: np.ndarray, gold: np.ndarray) -> float:
        metric = make()
        metric.update(predicted, gold)
        return metric.compute()

    return compute
