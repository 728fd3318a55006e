"""Spread over seeds, and whether a difference to the control is shown, in closed form."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal[
    "better", "worse", "no difference shown", "one seed, no spread", "seeds all alike", "collapsed", "control collapsed"
]

#: Verdicts that are none: with another learning rate or more training there might be one.
NO_VERDICT: tuple[Verdict, ...] = ("collapsed", "control collapsed", "seeds all alike")

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
        verdict: "better" or "worse" from two standard errors on, otherwise that no difference is shown. The others
            are no verdict at all: "collapsed" where each seed of the run answers every example alike or scores what
            the majority label does, "control collapsed" where those of the control do, and "seeds all alike" where
            either side has no spread to judge by.
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


def difference(
    run: Spread,
    control: Spread,
    *,
    higher_is_better: bool = True,
    collapsed: int = 0,
    control_collapsed: int = 0,
    majority: float | None = None,
) -> Difference:
    """The difference of two means with its standard error (unequal variances, independent seeds) and a verdict.

    Args:
        run: what was pretrained.
        control: the same thing without pretraining.
        higher_is_better: the direction of the metric.
        collapsed: how many of the run's seeds answer one and the same label throughout.
        control_collapsed: the same of the control.
        majority: what always answering the majority label scores, where that is known.
    """
    delta = run.mean - control.mean
    if run.deviation is None or control.deviation is None:
        return Difference(delta=delta, standard_error=None, verdict="one seed, no spread")
    error = math.sqrt(run.deviation**2 / run.n + control.deviation**2 / control.n)
    gain = delta if higher_is_better else -delta
    verdict: Verdict = "no difference shown"
    if _has_collapsed(run, collapsed, majority):
        verdict = "collapsed"
    elif _has_collapsed(control, control_collapsed, majority):
        verdict = "control collapsed"
    elif run.deviation == 0 or control.deviation == 0:
        verdict = "seeds all alike"
    elif gain > 0 and gain >= STANDARD_ERRORS * error:
        verdict = "better"
    elif gain < 0 and -gain >= STANDARD_ERRORS * error:
        verdict = "worse"
    return Difference(delta=delta, standard_error=error, verdict=verdict)


def _has_collapsed(side: Spread, num_collapsed: int, majority: float | None) -> bool:
    """Whether every seed answers one label, or scores exactly what the majority label does."""
    at_majority = side.deviation == 0 and majority is not None and math.isclose(side.mean, majority, rel_tol=1e-9)
    return num_collapsed >= side.n or at_majority
