"""What the best of several tries may be expected to score: how much of a score is the search."""

from __future__ import annotations

from collections.abc import Sequence


def expected_best(values: Sequence[float], *, higher_is_better: bool = True) -> list[float]:
    """The expected score of the best of k tries, for k from 1 to the number of values (Dodge et al. 2019, equation 5).

    The k tries are drawn from the values with replacement: the j-th smallest of n is their maximum with the chance
    (j / n)^k - ((j - 1) / n)^k.

    Args:
        values: the score of each setting tried.
        higher_is_better: the direction of the metric.
    """
    sign, n = (1.0 if higher_is_better else -1.0), len(values)
    ranked = sorted(sign * value for value in values)
    return [
        sign * sum(value * ((j / n) ** k - ((j - 1) / n) ** k) for j, value in enumerate(ranked, start=1))
        for k in range(1, n + 1)
    ]
