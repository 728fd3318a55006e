"""Metrics for sets of labels: F1 of the chosen labels, and average precision of the ranking by probability.

Shape legend: C labels, B examples of a batch, N examples.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lmtransfer.metrics.base import check_seen

#: A label is chosen if its probability is above this.
THRESHOLD = 0.5


class LabelSetF1:
    """F1 over all pairs of an example and a label (micro), or its unweighted mean over labels (macro).

    A label that is neither gold nor predicted has F1 0, as in scikit-learn with ``zero_division=0``.

    Args:
        num_labels: C.
        average: "micro" or "macro".
    """

    def __init__(self, *, num_labels: int, average: Literal["micro", "macro"]) -> None:
        self.name = f"{average}_f1"
        self._average = average
        self._right_C, self._total_C, self._seen = np.zeros(num_labels), np.zeros(num_labels), 0

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add one batch: probabilities, and 0 or 1, both of shape (B, C)."""
        chosen_BC, gold_BC = predictions > THRESHOLD, targets > 0
        self._right_C += (chosen_BC & gold_BC).sum(0)
        self._total_C += chosen_BC.sum(0) + gold_BC.sum(0)
        self._seen += len(targets)

    def compute(self) -> float:
        """Compute F1, 0 to 1.

        Raises:
            ValueError: there was no example.
        """
        check_seen(self.name, self._seen)
        return float(f1_of_counts(self._right_C, self._total_C, average=self._average))


def f1_of_counts(right_C: np.ndarray, total_C: np.ndarray, *, average: Literal["micro", "macro"]) -> np.ndarray:
    """F1 from counts of each label, shape (..., C) -> (...).

    Args:
        right_C: how often the label is gold and predicted.
        total_C: how often it is gold, plus how often it is predicted.
        average: "micro" or "macro".
    """
    if average == "micro":
        right_C, total_C = right_C.sum(-1, keepdims=True), total_C.sum(-1, keepdims=True)
    f1_C = np.divide(2 * right_C, total_C, out=np.zeros(np.shape(total_C)), where=total_C > 0)
    found: np.ndarray = f1_C.mean(-1)
    return found


class AveragePrecision:
    """Average precision of each label, as the unweighted mean over labels; needs no threshold.

    The average precision of a label is the sum over ranks of precision times the gain in recall; equal probabilities
    share a rank. A label without gold examples has 0, as in scikit-learn. Ranks need all values, so this metric keeps
    9 bytes for each example and label.

    Args:
        num_labels: C.
    """

    name = "average_precision"

    def __init__(self, *, num_labels: int) -> None:
        self._probabilities: list[np.ndarray] = [np.zeros((0, num_labels))]
        self._gold: list[np.ndarray] = [np.zeros((0, num_labels), dtype=bool)]

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add one batch: probabilities, and 0 or 1, both of shape (B, C)."""
        self._probabilities.append(predictions.astype(np.float64))
        self._gold.append(targets > 0)

    def compute(self) -> float:
        """Compute the mean over labels, 0 to 1.

        Raises:
            ValueError: there was no example.
        """
        probabilities_NC, gold_NC = np.concatenate(self._probabilities), np.concatenate(self._gold)
        check_seen(self.name, len(gold_NC))
        return float(np.mean([_of_label(*columns) for columns in zip(probabilities_NC.T, gold_NC.T, strict=True)]))


def _of_label(probabilities_N: np.ndarray, gold_N: np.ndarray) -> float:
    order = np.argsort(-probabilities_N, kind="stable")
    ranked = probabilities_N[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # the last example of each probability
    found = np.cumsum(gold_N[order])[ends]
    if not found[-1]:
        return 0.0
    return float((found / (ends + 1)) @ np.diff(found, prepend=0) / found[-1])
