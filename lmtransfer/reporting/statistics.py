"""Spread over seeds, and whether a difference to the control is shown, in closed form."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["better", "worse", "no difference shown", "one seed, no spread", "seeds all alike", "collapsed"]

#: A difference counts as shown from this many standard errors on.
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class Spread:
    """One metric over the seeds of a run.

    Attributes:
        mean: arithmetic mean, in the metric's unit.
        median: the median, in the metric's unit.
        deviation: sample standard deviation (n - 1 in the denominator); None with a single seed.
        n: number of seeds.
        values: the value of each seed, in the order of the seeds, where they are known one by one.
    """

    mean: float
    median: float
    deviation: float | None
    n: int
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A run against its control.

    Attributes:
        delta: mean of the run minus mean of the control, in the metric's unit.
        standard_error: sqrt(s1^2 / n1 + s2^2 / n2); None where one side has a single seed.
        verdict: "better" or "worse" from two standard errors on, otherwise that no difference is shown. "collapsed"
            where each seed of the run answers every example alike, and "seeds all alike" where neither side has any
            spread to judge by, is no verdict at all.
    """

    delta: float
    standard_error: float | None
    verdict: Verdict


def spread(values: Sequence[float]) -> Spread:
    """Mean, median and sample deviation of one value a seed.

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


def difference(run: Spread, control: Spread, *, higher_is_better: bool = True, collapsed: int = 0) -> Difference:
    """The difference of two means with its standard error (unequal variances, independent seeds) and a verdict.

    Args:
        run: what was pretrained.
        control: the same thing without pretraining.
        higher_is_better: the direction of the metric.
        collapsed: how many of the run's seeds answer one and the same label throughout.
    """
    delta = run.mean - control.mean
    if run.deviation is None or control.deviation is None:
        return Difference(delta=delta, standard_error=None, verdict="one seed, no spread")
    error = math.sqrt(run.deviation**2 / run.n + control.deviation**2 / control.n)
    gain = delta if higher_is_better else -delta
    verdict: Verdict = "no difference shown"
    if collapsed >= run.n:
        verdict = "collapsed"
    elif error == 0 and gain != 0:
        verdict = "seeds all alike"
    elif gain > 0 and gain >= STANDARD_ERRORS * error:
        verdict = "better"
    elif gain < 0 and -gain >= STANDARD_ERRORS * error:
        verdict = "worse"
    return Difference(delta=delta, standard_error=error, verdict=verdict)
