"""The power of a design: the smallest detectable difference, and the number of seeds needed to detect one."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from lmtransfer.verdicts.spread import critical_value

#: The largest number of seeds considered.
MAX_SEEDS = 1000


def power(shift: float, degrees_of_freedom: float, level: float) -> float:
    """Return the probability that a t test finds a true difference, with the right sign.

    P(T > critical) of the noncentral t distribution: the normal probability Phi(shift - critical s), averaged over the
    estimated deviation s, whose square is chi-squared divided by its degrees of freedom.

    Args:
        shift: the true difference in standard errors.
    """
    nodes, weights = deviations(degrees_of_freedom)
    reach = critical_value(level, degrees_of_freedom)
    return sum(
        weight * 0.5 * math.erfc((reach * node - shift) / math.sqrt(2))
        for node, weight in zip(nodes, weights, strict=True)
    )


def smallest_detectable(standard_error: float, degrees_of_freedom: float, *, level: float, chance: float) -> float:
    """Return the true difference that is detected with the given probability, in the unit of the standard error."""
    return standard_error * _detectable_shift(degrees_of_freedom, level, chance)


def seeds_needed(
    difference: float,
    num_seeds: int,
    seed_parts: Sequence[tuple[float, float]],
    example_parts: Sequence[tuple[float, float]],
    *,
    level: float,
    chance: float,
) -> int | None:
    """Return the number of seeds needed to detect a true difference with the given probability, all else being equal.

    Args:
        num_seeds: the current number of seeds, at least 2.
        seed_parts: variance and degrees of freedom of each part of the variance that more seeds reduce.
        example_parts: the same for each part that more seeds do not reduce: the examples.

    Returns:
        At least 2; None if ``MAX_SEEDS`` would not be enough.
    """

    def is_enough(count: int) -> bool:
        parts = [(v * num_seeds / count, df * (count - 1) / (num_seeds - 1)) for v, df in seed_parts] + list(
            example_parts
        )
        error, degrees = combine(parts)
        return error == 0 or difference >= smallest_detectable(error, degrees, level=level, chance=chance)

    if difference <= 0 or not is_enough(MAX_SEEDS):
        return None
    low, high = 1, MAX_SEEDS  # low is not enough, high is
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def combine(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the standard error of a sum of parts and its degrees of freedom, at least 1 (Satterthwaite 1946).

    Args:
        parts: variance and degrees of freedom of each independent part; if all variances are 0, the degrees of freedom
            are those of the first part.
    """
    total = sum(variance for variance, _ in parts)
    weighted = sum(variance * variance / degrees for variance, degrees in parts)
    return math.sqrt(total), max(1.0, total * total / weighted if weighted > 0 else parts[0][1])


@functools.lru_cache(maxsize=4096)
def _detectable_shift(degrees_of_freedom: float, level: float, chance: float) -> float:
    """Return the difference, in standard errors, that is detected with the given probability."""
    low, high = 0.0, critical_value(level, degrees_of_freedom)
    while power(high, degrees_of_freedom, level) < chance:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, degrees_of_freedom, level) < chance else (low, middle)
    return high


@functools.lru_cache(maxsize=256)
def deviations(degrees_of_freedom: float, num: int = 96) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return nodes and weights to integrate over the estimated deviation of a variable with true deviation 1.

    The estimate is sqrt(chi-squared / df), with the density s^(df - 1) exp(-df s^2 / 2) / Z.
    """
    width = 10 / math.sqrt(2 * degrees_of_freedom)
    low, high = max(0.0, 1 - width), 1 + width
    places, weights = np.polynomial.legendre.leggauss(num)
    roots = (places + 1) / 2  # more nodes near 0, where a small estimate reaches far into the tail
    nodes = low + (high - low) * roots**2
    log_density = (degrees_of_freedom - 1) * np.log(nodes) - degrees_of_freedom * nodes**2 / 2
    probabilities = weights * roots * np.exp(log_density - log_density.max())
    probabilities /= probabilities.sum()
    return tuple(nodes.tolist()), tuple(probabilities.tolist())
