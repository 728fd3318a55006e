"""Compute a metric from kept predictions: over all or some examples, and the contribution of each example.

Shape legend: N examples, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from lmtransfer.kept_predictions.scored import ScoredExamples
from lmtransfer.metrics import labels

#: The metrics that are computed from all answers together, by the kind of the answers.
_OF_ANSWERS = {
    "classification": ("accuracy", "f1", "macro_f1", "matthews"),
    "multi_label": ("macro_f1",),
    "regression": labels.CORRELATIONS,
}
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
    if metric not in _OF_ANSWERS.get(examples.kind, ()) or not (len(examples) if rows is None else len(rows)):
        return None
    predicted, gold = _by_example(examples)
    if rows is not None:
        predicted, gold = predicted[rows], gold[rows]
    return labels.metric_value(metric, predicted, gold, positive=examples.positive)


def undefined_metrics(examples: ScoredExamples, metrics: Iterable[str]) -> list[str]:
    """Sentences about the metrics that are not defined on the answers and count as 0."""
    if examples.kind not in _OF_ANSWERS:
        return []
    predicted, gold = _by_example(examples)
    found = (labels.undefined(name, predicted, gold, positive=examples.positive) for name in metrics)
    return [sentence for sentence in found if sentence]


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
    num = len(examples)
    if num < 2:
        return None
    predicted, gold = _by_example(examples)
    if examples.kind == "multi_label":
        right_NC, total_NC = predicted * gold, predicted + gold
        right_NC, total_NC = right_NC.sum(0) - right_NC, total_NC.sum(0) - total_NC
        f1_NC = np.divide(2 * right_NC, total_NC, out=np.zeros(total_NC.shape), where=total_NC > 0)
        found: np.ndarray = f1_NC.mean(-1)
        return found
    if examples.kind == "classification":  # examples with equal label and answer are interchangeable
        pairs, which, counts = np.unique(np.stack([predicted, gold]), axis=1, return_inverse=True, return_counts=True)
        values = []
        for pair in range(len(counts)):
            rest = counts - (np.arange(len(counts)) == pair)
            said, right = pairs[:, rest > 0]
            values.append(labels.metric_value(metric, said, right, positive=examples.positive, weights=rest[rest > 0]))
        return np.array(values)[which.reshape(-1)]
    if num > _MOST_LEFT_OUT:
        return None
    return np.array(
        [labels.metric_value(metric, np.delete(predicted, row), np.delete(gold, row)) for row in range(num)]
    )


def _by_example(examples: ScoredExamples) -> tuple[np.ndarray, np.ndarray]:
    """Answers and gold answers, shape (N,), or (N, C) for sets of labels."""
    if examples.kind != "multi_label":
        return examples.predicted, examples.gold
    shape = len(examples), len(examples.labels)
    return examples.predicted.reshape(shape), examples.gold.reshape(shape)
