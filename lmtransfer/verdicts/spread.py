"""A metric over the seeds of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over the seeds of a run.

    Attributes:
        mean: arithmetic mean, in the metric's unit.
        median: the median, in the metric's unit.
        deviation: sample standard deviation (n - 1 in the denominator); None with a single seed.
        n: number of seeds.
        values: the value of each seed, in the order of the seeds, if known.
    """

    mean: float
    median: float
    deviation: float | None
    n: int
    values: tuple[float, ...] = ()


def spread(values: Sequence[float]) -> Spread:
    """Compute mean, median and sample deviation of values, one for each seed.

    Args:
        values: at least one value.

    Raises:
        ValueError: ``values`` is empty.
    """
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
