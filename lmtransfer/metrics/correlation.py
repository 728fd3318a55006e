"""Correlations of real-valued predictions with gold scores."""

from __future__ import annotations

import math

import numpy as np

from lmtransfer.metrics.base import check_seen


class Pearson:
    """Pearson correlation by running moments; 0 if one side is constant.

    Batches are merged by the pairwise update of Chan, Golub and LeVeque (1983), which does not lose digits if the mean
    is large compared with the deviation. The first value of each side is subtracted from all, so that the moments of a
    constant side are exactly 0, whatever its mean is rounded to.
    """

    name = "pearson"

    def __init__(self) -> None:
        self._first: tuple[np.float64, np.float64] | None = None
        self._state = np.zeros(6)  # count, mean x, mean y, sum (x - mx)^2, sum (y - my)^2, sum (x - mx)(y - my)

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add one batch, both of shape (B,)."""
        if len(predictions) == 0:
            return
        x, y = predictions.astype(np.float64), targets.astype(np.float64)
        if self._first is None:
            self._first = x[0], y[0]
        x, y = x - self._first[0], y - self._first[1]
        mean_x, mean_y = x.mean(), y.mean()
        dx, dy = x - mean_x, y - mean_y
        self._add(np.array([len(x), mean_x, mean_y, dx @ dx, dy @ dy, dx @ dy]))

    def _add(self, state: np.ndarray) -> None:
        """Merge the moments of another part."""
        ours, total = self._state, self._state[0] + state[0]
        if total == 0:
            return
        dx, dy = state[1] - ours[1], state[2] - ours[2]
        share, factor = state[0] / total, ours[0] * state[0] / total
        moved = np.array([0.0, dx * share, dy * share, dx * dx * factor, dy * dy * factor, dx * dy * factor])
        added = np.concatenate([state[:1], np.zeros(2), state[3:]])
        self._state = ours + added + moved

    def compute(self) -> float:
        """Compute the correlation, -1 to 1.

        Raises:
            ValueError: there was no example.
        """
        check_seen(self.name, self._state[0])
        norm = self._state[3] * self._state[4]
        return float(self._state[5] / math.sqrt(norm)) if norm > 0 else 0.0


class Spearman:
    """Spearman rank correlation; equal values get their mean rank.

    Ranks need all values, so this metric keeps 16 bytes per example.
    """

    name = "spearman"

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add one batch, both of shape (B,)."""
        self._parts.append(np.stack([predictions.astype(np.float64), targets.astype(np.float64)]))

    def compute(self) -> float:
        """Compute the correlation, -1 to 1; 0 if one side is constant.

        Raises:
            ValueError: there was no example.
        """
        values = np.concatenate([np.zeros((2, 0)), *self._parts], axis=1)
        check_seen(self.name, values.shape[1])
        pearson = Pearson()
        pearson.update(mean_ranks(values[0]), mean_ranks(values[1]))
        return pearson.compute()


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Rank the values from 0; equal values get the mean of their ranks; float64, same shape."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes + 1) / 2)[group]
