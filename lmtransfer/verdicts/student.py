"""Student's t distribution with real-valued degrees of freedom, from scipy."""

from __future__ import annotations

from scipy import special


def two_sided_p_value(t: float, degrees_of_freedom: float) -> float:
    """Return the probability of a value further from 0 than ``t``.

    Args:
        t: a statistic; the result for infinity is 0.
        degrees_of_freedom: above 0, not necessarily whole.
    """
    if degrees_of_freedom <= 0:
        raise ValueError(f"degrees_of_freedom={degrees_of_freedom}: must be above 0")
    return float(2 * special.stdtr(degrees_of_freedom, -abs(t)))


def critical_value(level: float, degrees_of_freedom: float) -> float:
    """Return the t that |t| exceeds with probability ``level``: 2.776 for 0.05 and 4 degrees of freedom.

    Args:
        level: above 0 and below 1.
        degrees_of_freedom: above 0, not necessarily whole.
    """
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
