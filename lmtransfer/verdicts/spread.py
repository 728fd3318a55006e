"""The spread of a metric over the seeds of a run, and the expected best of several settings."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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
    """Compute the mean, median and sample deviation of values, one for each seed."""
    if not values:
        raise ValueError("a spread needs at least one value")
    return _spread(tuple(values))


@functools.lru_cache(maxsize=1 << 14)  # a report asks for the same spread dozens of times, and ``stdev`` is slow
def _spread(values: tuple[float, ...]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), statistics.median(values), deviation, len(values), values)


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
