"""Calibration: whether labels predicted with a probability of 80 % are right in 80 % of cases.

Source: Guo et al., "On Calibration of Modern Neural Networks" (2017), https://arxiv.org/abs/1706.04599: the expected
calibration error over 15 bins of equal width (section 2) and temperature scaling (section 4.2), which divides the
logits by a temperature and changes no predicted label.

Shape legend: N examples, C labels, M bins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: M.
NUM_BINS = 15
#: Range of temperatures; the limits are reached if sharper logits are always better, or always worse.
_LEAST, _MOST = 0.01, 100.0


def calibration(logits_NC: np.ndarray, gold_N: np.ndarray, parts_N: np.ndarray | None) -> dict[str, Any]:
    """Measure calibration before and after temperature scaling, as values for ``result.json``.

    The temperatures are cross-fitted: each part's temperature is fitted on all other parts, so that no example is
    scaled by a temperature that was fitted on its label.

    Args:
        parts_N: part of each example, 0, 1 and so on; None for no scaling.

    Returns:
        ``plain`` and ``scaled`` (see ``reliability``, with the mean negative log-probability of the gold labels, in
        nats, as ``loss``); ``temperature``, the geometric mean over parts; and ``fitted_on``, in words.
    """
    logits_NC = logits_NC.astype(np.float64)
    plain = _measure(logits_NC, gold_N)
    if parts_N is None:
        return {"plain": plain, "scaled": None, "temperature": None, "fitted_on": None}
    num_parts = int(parts_N.max()) + 1
    temperatures = np.array(
        [fit_temperature(logits_NC[parts_N != part], gold_N[parts_N != part]) for part in range(num_parts)]
    )
    return {
        "plain": plain,
        "scaled": _measure(logits_NC / temperatures[parts_N][:, None], gold_N),
        "temperature": float(np.exp(np.mean(np.log(temperatures)))),
        "fitted_on": f"cross-fit: each of {num_parts} parts of the scored split by the other parts",
    }


def reliability(confidences_N: np.ndarray, right_N: np.ndarray) -> dict[str, Any]:
    """Return how often the predictions in each bin of confidences are right; bin m covers ((m - 1) / M, m / M].

    Args:
        confidences_N: probability of each predicted label.
        right_N: whether each predicted label is right.

    Returns:
        ``ece``, the expected calibration error (the mean distance between accuracy and confidence, weighted by counts),
        and the ``counts``, mean ``confidences`` and ``accuracies`` of the M bins, 0 for empty bins.
    """
    bins_N = np.clip(np.ceil(confidences_N * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    counts_M, confidences_M, accuracies_M = (
        np.bincount(bins_N, weights=weights, minlength=NUM_BINS) for weights in (None, confidences_N, right_N)
    )
    mean_confidences_M, mean_accuracies_M = (sums / np.maximum(counts_M, 1) for sums in (confidences_M, accuracies_M))
    return {
        "ece": float(counts_M @ np.abs(mean_accuracies_M - mean_confidences_M) / counts_M.sum()),
        "counts": counts_M.tolist(),
        "confidences": mean_confidences_M.tolist(),
        "accuracies": mean_accuracies_M.tolist(),
    }


def fit_temperature(logits_NC: np.ndarray, gold_N: np.ndarray) -> float:
    """Return the temperature, 0.01 to 100, with the smallest mean negative log-probability of the gold labels.

    The loss is convex in 1 / temperature, so bisection finds the root of its slope.
    """
    of_gold = logits_NC[np.arange(len(gold_N)), gold_N].sum()
    low, high = np.log(1 / _MOST), np.log(1 / _LEAST)
    for _ in range(40):
        middle = (low + high) / 2
        slope = (_probabilities(logits_NC * np.exp(middle)) * logits_NC).sum() - of_gold
        low, high = (middle, high) if slope < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def _measure(logits_NC: np.ndarray, gold_N: np.ndarray) -> dict[str, Any]:
    said_N, rows = logits_NC.argmax(1), np.arange(len(gold_N))
    logs_NC = logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True)
    bins = reliability(_probabilities(logits_NC)[rows, said_N], said_N == gold_N)
    return {**bins, "loss": -float(logs_NC[rows, gold_N].mean())}


def _probabilities(logits_NC: np.ndarray) -> np.ndarray:
    powers_NC = np.exp(logits_NC - logits_NC.max(1, keepdims=True))
    probabilities_NC: np.ndarray = powers_NC / powers_NC.sum(1, keepdims=True)
    return probabilities_NC
