"""Intervals and power: the tests of a difference whose variance has several independent parts.

Satterthwaite's degrees of freedom are accurate at the 5 % level, but too optimistic at 0.2 %, the level for one of 24
comparisons: in tables of 24 unpaired comparisons with 5 and 3 seeds and spreads of 1 and 3, 17 % of the tables had a
false verdict. In the tail the parts are therefore kept separate: the difference is compared with a sum of independent
t variables, each with the deviation and the degrees of freedom of its part (Behrens 1929, Fisher 1935). This test is
conservative (Robinson 1976). With a single part the sum has exactly Student's t distribution.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

#: With at least this many degrees of freedom, the estimated variance of a part is taken as exact.
_EXACT_DEGREES = 200.0
_NODES = 40
#: The power for which the smallest detectable difference and the required number of seeds are reported.
POWER = 0.8
#: The largest number of seeds considered.
MAX_SEEDS = 1000


def two_sided_p_value(t: float, degrees_of_freedom: float) -> float:
    """Return the probability that a t variable is further from 0 than ``t``."""
    if degrees_of_freedom <= 0:
        raise ValueError(f"degrees_of_freedom={degrees_of_freedom} must be above 0")
    return float(2 * special.stdtr(degrees_of_freedom, -abs(t)))


def critical_value(level: float, degrees_of_freedom: float) -> float:
    """Return the value that |t| exceeds with probability ``level``: 2.776 for 0.05 and 4 degrees of freedom."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} must be between 0 and 1")
    return float(-special.stdtrit(degrees_of_freedom, level / 2))


def interval_around(
    value: float, standard_error: float | None, degrees_of_freedom: float | None, level: float
) -> tuple[float, float] | None:
    """Return the limits of the interval at ``1 - level``; None if the error or its degrees of freedom are unknown."""
    if standard_error is None or degrees_of_freedom is None:
        return None
    half = critical_value(level, degrees_of_freedom) * standard_error
    return value - half, value + half


def combine(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the standard error of a sum of parts and its degrees of freedom, at least 1 (Satterthwaite 1946).

    Args:
        parts: variance and degrees of freedom of each independent part; if all variances are 0, the degrees of freedom
            are those of the first part.
    """
    total = sum(variance for variance, _ in parts)
    weighted = sum(variance * variance / degrees for variance, degrees in parts)
    return math.sqrt(total), max(1.0, total * total / weighted if weighted > 0 else parts[0][1])


def chance(difference: float, parts: Sequence[tuple[float, float]]) -> float:
    """Return the two-sided probability that a difference of this size or more arises by chance.

    Args:
        difference: the difference, in any unit.
        parts: variance (in that unit squared) and degrees of freedom of each part; at least one variance is above 0.
    """
    positive = sorted(((variance, df) for variance, df in parts if variance > 0), key=lambda part: part[1])
    if len(positive) == 1:
        return two_sided_p_value(difference / math.sqrt(positive[0][0]), positive[0][1])
    exact_variance = sum(variance for variance, df in positive if df >= _EXACT_DEGREES)
    estimates = [part for part in positive if part[1] < _EXACT_DEGREES]
    if not estimates:
        return math.erfc(abs(difference) / math.sqrt(2 * exact_variance))
    while len(estimates) > 2:  # merge the two with the most degrees of freedom, after Satterthwaite
        error, df = combine(estimates[-2:])
        estimates[-2:] = [(error**2, df)]
    variances, probabilities = np.full(1, exact_variance), np.ones(1)
    for variance, df in estimates:
        nodes, weights = _deviations(df)
        variances = (variances[:, None] + variance / np.square(nodes)).ravel()
        probabilities = (probabilities[:, None] * np.array(weights)).ravel()
    tails = [math.erfc(place) for place in (abs(difference) / np.sqrt(2 * variances)).tolist()]
    return float(probabilities @ np.array(tails))


@functools.lru_cache(maxsize=1024)
def reach(level: float, parts: tuple[tuple[float, float], ...]) -> float:
    """Return the difference that is exceeded by chance with probability ``level``: half the width of an interval.

    Args:
        parts: as for ``chance``.
    """
    error, _ = combine(parts)
    low, high = 0.0, error * critical_value(level, max(df for _, df in parts))
    while chance(high, parts) > level:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, parts) > level else (low, middle)
    return high


def degrees_in_the_tail(level: float, parts: tuple[tuple[float, float], ...]) -> float:
    """Return the degrees of freedom, at least 1, of the t distribution that has the same quantile at this level."""
    error, _ = combine(parts)
    return max(1.0, float(special.stdtridf(level / 2, -reach(level, parts) / error)))


@functools.lru_cache(maxsize=256)
def _deviations(degrees_of_freedom: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return nodes and weights to integrate over the estimated deviation of a variable with true deviation 1.

    The estimate is sqrt(chi-squared / df), with the density s^(df - 1) exp(-df s^2 / 2) / Z.
    """
    width = 10 / math.sqrt(2 * degrees_of_freedom)
    low, high = max(0.0, 1 - width), 1 + width
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    roots = (places + 1) / 2  # more nodes near 0, where a small estimate reaches far into the tail
    nodes = low + (high - low) * roots**2
    log_density = (degrees_of_freedom - 1) * np.log(nodes) - degrees_of_freedom * nodes**2 / 2
    probabilities = weights * roots * np.exp(log_density - log_density.max())
    probabilities /= probabilities.sum()
    return tuple(nodes.tolist()), tuple(probabilities.tolist())


@functools.lru_cache(maxsize=1 << 16)
def smallest_detectable(standard_error: float, degrees_of_freedom: float, *, level: float) -> float:
    """Return the true difference that a t test finds with probability ``POWER``, with the right sign."""
    reach = critical_value(level, degrees_of_freedom)
    return standard_error * float(special.nctdtrinc(degrees_of_freedom, 1 - POWER, reach))


def seeds_needed(
    difference: float,
    num_seeds: int,
    seed_parts: Sequence[tuple[float, float]],
    example_parts: Sequence[tuple[float, float]],
    *,
    level: float,
) -> int | None:
    """Return the number of seeds needed to find a true difference with probability ``POWER``, all else being equal.

    Args:
        num_seeds: the current number of seeds, at least 2.
        seed_parts: variance and degrees of freedom of each part of the variance that more seeds reduce.
        example_parts: the same for each part that more seeds do not reduce: the examples.

    Returns:
        The number of seeds, at least 2; None if ``MAX_SEEDS`` would not be enough.
    """

    def is_enough(count: int) -> bool:
        parts = [(v * num_seeds / count, df * (count - 1) / (num_seeds - 1)) for v, df in seed_parts]
        error, degrees = combine([*parts, *example_parts])
        return error == 0 or difference >= smallest_detectable(error, degrees, level=level)

    if difference <= 0 or not is_enough(MAX_SEEDS):
        return None
    return bisect.bisect_left(range(MAX_SEEDS), True, lo=2, key=is_enough)
