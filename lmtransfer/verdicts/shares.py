"""Exact intervals and tests for shares of few items, such as the accuracy on six minimal pairs.

A normal interval fails for few items: it leaves the range from 0 to 1, and it has no width if all items agree. Here a
share has the interval of Clopper and Pearson (1934), and a difference between two shares of the same items has a sign
test of the items on which the sides differ, as in the exact test of McNemar (1947). Items may have weights; they then
count as an effective number of items (Kish 1965), with which the beta distribution replaces the binomial distribution
(Korn and Graubard 1998).

Shape legend: N items.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from scipy import stats

#: With at least this many items per stratum, the variance within strata is estimated from the items.
ENOUGH_ITEMS = 30
#: If each of two sides wins at least this many items, their difference is about normal.
ENOUGH_WINS = 15


def share_interval(share: float, num: float, *, level: float = 0.05) -> tuple[float, float]:
    """Return the interval of a share of ``num`` items, at ``1 - level``; neither number must be whole."""
    right = share * num
    low = 0.0 if right <= 0 else float(stats.beta.ppf(level / 2, right, num - right + 1))
    high = 1.0 if right >= num else float(stats.beta.ppf(1 - level / 2, right + 1, num - right))
    return low, high


def share_p_value(share: float, num: float, expected: float) -> float:
    """Return the two-sided p value of a share against the expected one: twice the smaller tail, at most 1.

    It is at most ``level`` exactly if the interval at ``1 - level`` excludes the expected share.
    """
    right = share * num
    above = 1.0 if right <= 0 else float(stats.beta.cdf(expected, right, num - right + 1))
    below = 1.0 if right >= num else float(stats.beta.sf(expected, right + 1, num - right))
    return min(1.0, 2 * min(above, below))


def effective_number(weights: np.ndarray) -> float:
    """Return the number of equally weighted items that are worth as much as items with these weights, shape (N,)."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def effective_items(values: np.ndarray, weights: np.ndarray, strata: np.ndarray) -> float:
    """Return the effective number of items of a weighted share, whose strata are fixed.

    Args:
        values: from 0 to 1, shape (N,).
        strata: the stratum of each item, shape (N,).
    """
    share = float(np.average(values, weights=weights))
    variance = _variance(values, weights, strata)
    if variance > 0 and np.bincount(strata).min() >= ENOUGH_ITEMS:
        return share * (1 - share) / variance
    return effective_number(weights)


def paired_difference(differences: np.ndarray, weights: np.ndarray, strata: np.ndarray) -> tuple[float, float, float]:
    """Return the 95 % interval and the p value of the mean difference between two sides on the same items.

    If the sides differ on few items, the test is a sign test of these items. The interval combines the intervals of
    two shares: of the items on which the sides differ, and of the first side's wins among them. It excludes 0 exactly
    if the test finds a difference, and it has a width if the sides differ on no item. If each side wins many items,
    both are normal approximations.

    Args:
        differences: from -1 to 1, shape (N,).
        strata: the stratum of each item, shape (N,).
    """
    differ = differences != 0
    if min((differences > 0).sum(), (differences < 0).sum()) >= ENOUGH_WINS and np.bincount(strata).min() > 1:
        mean, error = float(np.average(differences, weights=weights)), _variance(differences, weights, strata) ** 0.5
        reach = NormalDist().inv_cdf(0.975) * error
        return mean - reach, mean + reach, float(2 * stats.norm.sf(abs(mean) / error)) if error else float(mean == 0)
    sizes = weights * np.abs(differences)
    least, most = share_interval(float(sizes.sum() / weights.sum()), effective_number(weights))
    if not differ.any():
        return -most, most, 1.0
    wins, num = float(sizes[differences > 0].sum() / sizes.sum()), effective_number(sizes[differ])
    low, high = (2 * limit - 1 for limit in share_interval(wins, num))
    return low * (most if low < 0 else least), high * (most if high > 0 else least), share_p_value(wins, num, 0.5)


def few_items_note(num: int) -> str:
    """Return a word of caution on a share of few items; empty if there are enough."""
    noun = "item" if num == 1 else "items"
    return f"only {num} {noun}: too few to show any but a large difference" if num < ENOUGH_ITEMS else ""


def _variance(values: np.ndarray, weights: np.ndarray, strata: np.ndarray) -> float:
    """Return the variance of a weighted mean, of which each stratum is a sample and has equal weights within it."""
    variance = 0.0
    for stratum in range(int(strata.max()) + 1):
        rows = strata == stratum
        count = int(rows.sum())
        if count > 1:
            variance += float(weights[rows].sum() / weights.sum()) ** 2 * float(values[rows].var(ddof=1)) / count
    return variance
