"""Classification metrics that need only the confusion matrix: accuracy, F1, Matthews correlation.

Shape legend: C labels, B examples of a batch.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from lmtransfer.metrics.base import check_seen


class ConfusionMetric:
    """Counts ``matrix_CC[target, prediction]``, float64.

    Args:
        num_labels: C.
    """

    name: str

    def __init__(self, *, num_labels: int) -> None:
        self.num_labels = num_labels
        self.matrix_CC = np.zeros((num_labels, num_labels))

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add one batch of label indices, both of shape (B,)."""
        cells = targets.astype(np.int64) * self.num_labels + predictions.astype(np.int64)
        self.matrix_CC += np.bincount(cells, minlength=self.num_labels**2).reshape(self.matrix_CC.shape)

    def compute(self) -> float:
        """Compute the metric.

        Raises:
            ValueError: there was no example.
        """
        check_seen(self.name, self.matrix_CC.sum())
        return self._value()

    def _value(self) -> float:
        raise NotImplementedError


class Accuracy(ConfusionMetric):
    """Fraction of examples whose label is right, 0 to 1."""

    name = "accuracy"

    def _value(self) -> float:
        return float(np.trace(self.matrix_CC) / self.matrix_CC.sum())


class F1(ConfusionMetric):
    """F1 of one label, or its unweighted mean over all labels; a label that is neither gold nor predicted has F1 0.

    Args:
        num_labels: C.
        positive: index of the label that counts (MRPC, QQP), or ``"macro"``.
    """

    def __init__(self, *, num_labels: int, positive: int | Literal["macro"] = 1) -> None:
        super().__init__(num_labels=num_labels)
        self.name = "macro_f1" if positive == "macro" else "f1"
        self.positive = positive

    def _value(self) -> float:
        true = np.diag(self.matrix_CC)
        total = self.matrix_CC.sum(0) + self.matrix_CC.sum(1)
        f1_C = np.divide(2 * true, total, out=np.zeros_like(true), where=total > 0)
        return float(f1_C.mean() if self.positive == "macro" else f1_C[self.positive])


class Matthews(ConfusionMetric):
    """Matthews correlation, -1 to 1; the generalisation R_K for more than two labels; 0 if it is undefined.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient" (2004).
    """

    name = "matthews"

    def _value(self) -> float:
        matrix_CC = self.matrix_CC
        total = matrix_CC.sum()
        gold_C, predicted_C = matrix_CC.sum(1), matrix_CC.sum(0)
        covariance = np.trace(matrix_CC) * total - gold_C @ predicted_C
        norm = (total**2 - predicted_C @ predicted_C) * (total**2 - gold_C @ gold_C)
        return float(covariance / math.sqrt(norm)) if norm > 0 else 0.0
