"""A metric over the seeds of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over the seeds of a run.

    Attributes:
        deviation: sample standard deviation (n - 1 in the denominator); None with a single seed.
        values: the value of each seed, in the order of the seeds, if known.
    """

    mean: float
    median: float
    deviation: float | None
    n: int
    values: tuple[float, ...] = ()


def spread(values: Sequence[float]) -> Spread:
    """Compute mean, median and sample deviation of values, one for each seed."""
    if not values:
        raise ValueError("a spread needs at least one value")
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(
        mean=statistics.fmean(values),
        median=statistics.median(values),
        deviation=deviation,
        n=len(values),
        values=tuple(values),
    )


def two_sided_p_value(t: float, degrees_of_freedom: float) -> float:
    """Return the probability of a value further from 0 than ``t``."""
    if degrees_of_freedom <= 0:
        raise ValueError(f"degrees_of_freedom={degrees_of_freedom}: must be above 0")
    return float(2 * special.stdtr(degrees_of_freedom, -abs(t)))


def critical_value(level: float, degrees_of_freedom: float) -> float:
    """Return the t that |t| exceeds with probability ``level``: 2.776 for 0.05 and 4 degrees of freedom."""
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1")
    return float(-special.stdtrit(degrees_of_freedom, level / 2))


def interval_around(
    value: float, standard_error: float | None, degrees_of_freedom: float | None, level: float
) -> tuple[float, float] | None:
    """Return the limits of the interval at ``1 - level``; None if the error or its degrees of freedom are unknown."""
    if standard_error is None or degrees_of_freedom is None:
        return None
    half = critical_value(level, degrees_of_freedom) * standard_error
    return value - half, value + half


def expected_best(
    values: Sequence[float], *, scores: Sequence[float] | None = None, higher_is_better: bool = True
) -> list[float]:
    """Return the expected score of the best of k tries, for k from 1 to the number of values n.

    This is equation 5 of Dodge et al. 2019.

    The k tries are sampled from the n values with replacement. The j-th smallest value is their maximum with
    probability (j / n)^k - ((j - 1) / n)^k.

    Args:
        values: the value of each setting, by which the best setting is chosen.
        scores: the score to expect from each setting if it is chosen, such as the score of one seed if ``values`` are
            means over seeds; ``values`` if None.
    """
    scores, n = values if scores is None else scores, len(values)
    ranked = sorted(range(n), key=lambda place: values[place], reverse=not higher_is_better)
    return [
        sum(scores[place] * ((j / n) ** k - ((j - 1) / n) ** k) for j, place in enumerate(ranked, start=1))
        for k in range(1, n + 1)
    ]


def combine(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the standard error of a sum of parts and its degrees of freedom, at least 1 (Satterthwaite 1946).

    Args:
        parts: variance and degrees of freedom of each independent part; if all variances are 0, the degrees of freedom
            are those of the first part.
    """
    total = sum(variance for variance, _ in parts)
    weighted = sum(variance * variance / degrees for variance, degrees in parts)
    return math.sqrt(total), max(1.0, total * total / weighted if weighted > 0 else parts[0][1])
