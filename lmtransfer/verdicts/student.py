"""Student's t distribution with any degrees of freedom, without scipy."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

#: From this many degrees of freedom on, t equals the normal distribution to within 1e-8.
_NORMAL = 1e8


def two_sided(t: float, degrees_of_freedom: float) -> float:
    """The probability of a value further from 0 than ``t``.

    It is the regularised incomplete beta function I_x(df / 2, 1 / 2) at x = df / (df + t^2).

    Args:
        t: a statistic; infinity has probability 0.
        degrees_of_freedom: above 0, not necessarily whole.
    """
    if degrees_of_freedom <= 0:
        raise ValueError(f"{degrees_of_freedom} degrees of freedom")
    if math.isinf(t):
        return 0.0
    if degrees_of_freedom >= _NORMAL:
        return math.erfc(abs(t) / math.sqrt(2))
    total = degrees_of_freedom + t * t
    return _incomplete_beta(degrees_of_freedom / 2, 0.5, degrees_of_freedom / total, t * t / total)


@functools.lru_cache(maxsize=4096)
def critical(level: float, degrees_of_freedom: float) -> float:
    """The t that is exceeded on either side with probability ``level``: 2.776 for 0.05 and 4 degrees of freedom.

    Args:
        level: above 0 and below 1.
        degrees_of_freedom: above 0, not necessarily whole.
    """
    if not 0 < level < 1:
        raise ValueError(f"a level of {level}")
    low, high = 0.0, math.inf
    t = max(NormalDist().inv_cdf(1 - level / 2), 1e-9)
    for _ in range(200):  # Newton's method for log t and the log of the probability, kept inside a bracket
        found = two_sided(t, degrees_of_freedom)
        low, high = (t, high) if found > level else (low, t)
        slope = 2 * t * _density(t, degrees_of_freedom)
        step = found * math.log(found / level) / slope if slope > 0 and found > 0 else math.inf
        if abs(step) < 1e-14:
            break
        following = t * math.exp(min(step, 2.0))
        if not low < following < high:
            following = (low + high) / 2 if math.isfinite(high) else 2 * t
        if following == t:
            break
        t = following
    return t


def interval_around(
    value: float, standard_error: float | None, degrees_of_freedom: float | None, level: float
) -> tuple[float, float] | None:
    """Low and high end of the interval at ``1 - level``; None if the error or its degrees of freedom are not known."""
    if standard_error is None or degrees_of_freedom is None:
        return None
    half = critical(level, degrees_of_freedom) * standard_error
    return value - half, value + half


def _density(t: float, degrees_of_freedom: float) -> float:
    half = (degrees_of_freedom + 1) / 2
    front = math.lgamma(half) - math.lgamma(degrees_of_freedom / 2) - math.log(degrees_of_freedom * math.pi) / 2
    return math.exp(front - half * math.log1p(t * t / degrees_of_freedom))


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8), with ``rest`` = 1 - x given exactly."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by the method of Lentz."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 100_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            step = c * d
            value *= step
        if abs(step - 1.0) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function of {a}, {b} at {x} does not converge")
