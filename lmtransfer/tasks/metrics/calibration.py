"""Calibration: whether labels with a probability of 80 % are right in 80 of 100 cases, before and after scaling.

Source: Guo et al., "On Calibration of Modern Neural Networks" (2017), https://arxiv.org/abs/1706.04599: the expected
calibration error over 15 bins of equal width (section 2) and temperature scaling (section 4.2). A temperature divides
the logits and changes no answer.

Shape legend: N examples, C labels, M bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: M.
NUM_BINS = 15
#: Range of temperatures; the limits apply to logits that should always, or never, be sharper.
_LEAST, _MOST = 0.01, 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """How often the answers in each confidence bin are right. Bin m holds confidences in ((m - 1) / M, m / M].

    Attributes:
        counts: number of answers in each bin, int64, shape (M,).
        confidences: mean probability of these answers, float64, shape (M,); 0 for an empty bin.
        accuracies: share of correct answers, float64, shape (M,); 0 for an empty bin.
    """

    counts: np.ndarray
    confidences: np.ndarray
    accuracies: np.ndarray

    @classmethod
    def of(cls, confidences_N: np.ndarray, right_N: np.ndarray) -> Reliability:
        """Sort answers into bins.

        Args:
            confidences_N: probability of each answer.
            right_N: whether each answer is right.
        """
        bins_N = np.clip(np.ceil(confidences_N * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
        counts, confidences, accuracies = (
            np.bincount(bins_N, weights=weights, minlength=NUM_BINS) for weights in (None, confidences_N, right_N)
        )
        return cls(counts, confidences / np.maximum(counts, 1), accuracies / np.maximum(counts, 1))

    @property
    def error(self) -> float:
        """The expected calibration error, 0 to 1: the mean distance of accuracy and confidence, weighted by counts."""
        return float(self.counts @ np.abs(self.accuracies - self.confidences) / self.counts.sum())

    def as_values(self) -> dict[str, Any]:
        """Return ``ece``, ``counts``, ``confidences`` and ``accuracies`` as plain values."""
        bins = {name: getattr(self, name).tolist() for name in ("counts", "confidences", "accuracies")}
        return {"ece": self.error, **bins}


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The calibration of a run's answers.

    Attributes:
        reliability: how often the answers are right, by their unscaled probabilities.
        loss: mean negative log-probability of the gold label without scaling, in nats.
        scaled_reliability: the same with temperatures fitted on other examples; None if there are too few examples.
        scaled_loss: the same loss with these temperatures.
        temperatures: the temperature of each part, fitted on all other parts.
    """

    reliability: Reliability
    loss: float
    scaled_reliability: Reliability | None = None
    scaled_loss: float | None = None
    temperatures: tuple[float, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """Return plain values for a ``result.json``; ``temperature`` is the geometric mean over parts."""
        return {
            "plain": {**self.reliability.as_values(), "loss": self.loss},
            "scaled": None
            if self.scaled_reliability is None
            else {**self.scaled_reliability.as_values(), "loss": self.scaled_loss},
            "temperature": float(np.exp(np.mean(np.log(self.temperatures)))) if self.temperatures else None,
            "fitted_on": f"cross-fit: each of {len(self.temperatures)} parts of the scored split by the other parts"
            if self.temperatures
            else None,
        }


def calibration(logits_NC: np.ndarray, gold_N: np.ndarray, parts_N: np.ndarray | None) -> Calibration:
    """Measure calibration before and after temperature scaling.

    The temperatures are cross-fitted: each part's temperature is fitted on all other parts, so that no example is
    measured with a temperature that has seen its label.

    Args:
        logits_NC: logits of each label.
        gold_N: index of the gold label.
        parts_N: part of each example, 0, 1 and so on; None for no scaling.
    """
    logits_NC = logits_NC.astype(np.float64)
    reliability, loss = _measure(logits_NC, gold_N)
    if parts_N is None:
        return Calibration(reliability, loss)
    temperatures = tuple(
        fit_temperature(logits_NC[parts_N != part], gold_N[parts_N != part]) for part in range(int(parts_N.max()) + 1)
    )
    scaled_reliability, scaled_loss = _measure(logits_NC / np.array(temperatures)[parts_N][:, None], gold_N)
    return Calibration(reliability, loss, scaled_reliability, scaled_loss, temperatures)


def fit_temperature(logits_NC: np.ndarray, gold_N: np.ndarray) -> float:
    """Return the temperature, 0.01 to 100, with the smallest mean negative log-probability of the gold labels.

    The loss is convex in 1 / temperature, so the root of its slope is found by bisection.
    """
    of_gold = logits_NC[np.arange(len(gold_N)), gold_N].sum()
    low, high = np.log(1 / _MOST), np.log(1 / _LEAST)
    for _ in range(40):
        middle = (low + high) / 2
        slope = (_probabilities(logits_NC * np.exp(middle)) * logits_NC).sum() - of_gold
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def _measure(logits_NC: np.ndarray, gold_N: np.ndarray) -> tuple[Reliability, float]:
    probabilities_NC = _probabilities(logits_NC)
    said_N = logits_NC.argmax(1)
    rows = np.arange(len(gold_N))
    logs_NC = logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True)
    return Reliability.of(probabilities_NC[rows, said_N], said_N == gold_N), -float(logs_NC[rows, gold_N].mean())


def _probabilities(logits_NC: np.ndarray) -> np.ndarray:
    powers_NC = np.exp(logits_NC - logits_NC.max(1, keepdims=True))
    probabilities_NC: np.ndarray = powers_NC / powers_NC.sum(1, keepdims=True)
    return probabilities_NC
