"""Metrics for labels, sets of labels and scores, from scikit-learn and scipy. Higher values are better.

Both libraries are imported where they are used, so that commands that score nothing start without them. Where they warn
that a metric is undefined, its value is 0 and ``explain_undefined`` gives the reason.

Shape legend: N examples, C labels.
"""

from __future__ import annotations

import warnings

import numpy as np

#: A label in a set is chosen if its probability is above this.
THRESHOLD = 0.5
CORRELATIONS = ("pearson", "spearman")


def metric_value(
    name: str,
    predicted: np.ndarray,
    gold: np.ndarray,
    *,
    positive: int = 1,
    weights: np.ndarray | None = None,
) -> float:
    """Compute a metric; 0 if it is undefined.

    ``macro_f1`` is the mean over the labels that are gold or predicted at least once or, for sets of labels, over all
    labels. ``matthews`` with three or more labels is R_K (Gorodkin 2004).

    Args:
        name: ``accuracy``, ``f1``, ``macro_f1`` or ``matthews`` for labels; ``micro_f1``, ``macro_f1`` or
            ``average_precision`` for sets of labels; ``pearson`` or ``spearman`` for scores.
        predicted: label indices or scores, shape (N,); for sets of labels, probabilities, shape (N, C).
        gold: label indices or scores, shape (N,); for sets of labels, 0 or 1, shape (N, C).
        positive: index of the positive class, for which ``f1`` is computed.
        weights: weight of each example, shape (N,), for labels only; None for equal weights.
    """
    if len(gold) == 0:
        raise ValueError(f"metric {name} received no examples")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ``explain_undefined`` gives the reasons
        if name in CORRELATIONS:
            return _correlation(name, predicted.astype(np.float64), gold.astype(np.float64))
        from sklearn import metrics

        whole = gold.astype(np.int64)
        if name == "average_precision":
            return float(metrics.average_precision_score(whole, predicted, average="macro"))
        answers = (predicted > THRESHOLD if predicted.ndim == 2 else predicted).astype(np.int64)
        if name == "accuracy":
            return float(metrics.accuracy_score(whole, answers, sample_weight=weights))
        if name == "matthews":
            return float(metrics.matthews_corrcoef(whole, answers, sample_weight=weights))
        labels, average = ([positive], "macro") if name == "f1" else (None, name.removesuffix("_f1"))
        return float(
            metrics.f1_score(whole, answers, labels=labels, average=average, sample_weight=weights, zero_division=0.0)
        )


def explain_undefined(name: str, predicted: np.ndarray, gold: np.ndarray, *, positive: int = 1) -> str:
    """Explain why a metric, or its value for some labels, is undefined and counts as 0; empty if all is defined.

    Args:
        predicted: as in ``metric_value``; for sets of labels, decisions of 0 or 1 are also accepted.
    """
    if name in (*CORRELATIONS, "matthews"):
        sides = {"prediction": predicted, "gold answer": gold}
        reasons = [f"every {side} is the same" for side, values in sides.items() if len(np.unique(values)) == 1]
        return f"{name} is not defined and counts as 0: {' and '.join(reasons)}" if reasons else ""
    if name == "f1" and gold.ndim == 1 and not ((gold == positive) | (predicted == positive)).any():
        return "f1 is not defined and counts as 0: the positive class is neither gold nor predicted"
    if gold.ndim == 2 and name in ("macro_f1", "average_precision"):
        chosen = gold > 0 if name == "average_precision" else (gold > 0) | (predicted > THRESHOLD)
        absent = int((~chosen.any(0)).sum())
        missing = "no gold example" if name == "average_precision" else "no gold and no predicted example"
        return f"{name} counts {absent} of {gold.shape[1]} labels as 0, because they have {missing}" if absent else ""
    return ""


def _correlation(name: str, predicted: np.ndarray, gold: np.ndarray) -> float:
    from scipy import stats

    if len(np.unique(predicted)) == 1 or len(np.unique(gold)) == 1:
        return 0.0
    result = stats.pearsonr(predicted, gold) if name == "pearson" else stats.spearmanr(predicted, gold)
    return float(result.statistic)
