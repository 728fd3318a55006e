"""Student's t distribution with real-valued degrees of freedom, from scipy."""

from __future__ import annotations

from scipy import special


def two_sided(t: float, degrees_of_freedom: float) -> float:
    """The probability of a value further from 0 than ``t``.

    Args:
        t: a statistic; the result for infinity is 0.
        degrees_of_freedom: above 0, not necessarily whole.
    """
    if degrees_of_freedom <= 0:
        raise ValueError(f"{degrees_of_freedom} degrees of freedom")
    return float(2 * special.stdtr(degrees_of_freedom, -abs(t)))


def critical(level: float, degrees_of_freedom: float) -> float:
    """The t that is exceeded on either side with probability ``level``: 2.776 for 0.05 and 4 degrees of freedom.

    Args:
        level: above 0 and below 1.
        degrees_of_freedom: above 0, not necessarily whole.
    """
    if not 0 < level < 1:
        raise ValueError(f"a level of {level}")
    return float(-special.stdtrit(degrees_of_freedom, level / 2))


def interval_around(
    value: float, standard_error: float | None, degrees_of_freedom: float | None, level: float
) -> tuple[float, float] | None:
    """The limits of the interval at ``1 - level``; None if the error or its degrees of freedom are unknown."""
    if standard_error is None or degrees_of_freedom is None:
        return None
    half = critical(level, degrees_of_freedom) * standard_error
    return value - half, value + half
