"""The trivial baseline, and runs that have collapsed onto it."""

from __future__ import annotations

import numpy as np

from lmtransfer.metrics.base import Metric


def majority_label(train_labels: np.ndarray, *, num_labels: int) -> int:
    """The most frequent label of the training set (the first of them on a tie).

    Args:
        train_labels: label indices, shape (N,).
        num_labels: how many labels there are.
    """
    return int(np.bincount(train_labels, minlength=num_labels).argmax())


def majority_baseline(
    train_labels: np.ndarray, labels: np.ndarray, metrics: list[Metric], *, num_labels: int
) -> dict[str, float]:
    """The metrics of always answering the training set's majority label.

    Args:
        train_labels: label indices of the training set, shape (N,).
        labels: label indices of the evaluation set, shape (M,).
        metrics: fresh metrics.
        num_labels: how many labels there are.
    """
    answer = majority_label(train_labels, num_labels=num_labels)
    for metric in metrics:
        metric.update(np.full(len(labels), answer), labels)
    return {metric.name: metric.compute() for metric in metrics}


def is_collapsed(prediction_counts: np.ndarray) -> bool:
    """Whether every prediction of a model is one and the same label.

    Args:
        prediction_counts: how often each label was predicted, shape (C,).
    """
    return int((prediction_counts > 0).sum()) == 1
