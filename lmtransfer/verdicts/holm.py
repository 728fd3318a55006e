"""Holm's joint correction for the comparisons in one column of a table (Holm 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.compare import add_verdict
from lmtransfer.verdicts.difference import LEVEL, VERDICTS, Difference


def correct_column(differences: Sequence[Difference], *, margins: Sequence[float | None] = ()) -> list[Difference]:
    """Correct the verdicts of the comparisons in a column and return the comparisons in the same order.

    If there is no true difference at all, at most 5 % of columns contain any "better" or "worse", however the
    comparisons depend on each other. The smallest of m p values is tested at 0.05 / m, the next at 0.05 / (m - 1) and
    so on, up to the first that fails; this p value and all larger ones are tested at the level of the first failure.
    An interval at ``level`` therefore excludes 0 exactly if Holm's procedure finds a difference. The module
    ``difference`` describes the tests at such small levels. Comparisons without a p value (one seed, collapsed, ...)
    do not change and do not count.

    "equivalent" is tested in the same way, with the p values ``Difference.equivalence_p_value``: at most 5 % of columns
    contain an "equivalent" whose true difference is at least the margin.

    Args:
        margins: for each difference the size below which the difference does not matter, in the metric's unit, or None
            for no test: "no difference shown" becomes "equivalent" if two one-sided tests show that the difference is
            smaller.
    """
    results = list(differences)
    if margins:
        results = [replace(result, margin=margin) for result, margin in zip(results, margins, strict=True)]
    places = [place for place, difference in enumerate(results) if difference.verdict in VERDICTS]
    equivalent = _equivalent_places(results, places)
    if len(places) < 2:
        for place in equivalent:
            results[place] = add_verdict(
                results[place], excludes_zero=results[place].verdict in ("better", "worse"), equivalent=True
            )
        return results
    ranked = sorted((results[place].tail_probability or 0.0, place) for place in places)
    level, corrected_p_value, failed = LEVEL, 0.0, False
    for rank, (chance, place) in enumerate(ranked):
        num_left = len(ranked) - rank
        corrected_p_value = max(corrected_p_value, min(1.0, num_left * chance))
        if not failed:
            level = LEVEL / num_left
            failed = chance > level
        result = replace(results[place], level=level, num_comparisons=len(ranked), corrected_p_value=corrected_p_value)
        results[place] = add_verdict(result, excludes_zero=not failed, equivalent=place in equivalent)
    return results


def _equivalent_places(differences: Sequence[Difference], places: Sequence[int]) -> set[int]:
    """Return the indices at which Holm's procedure shows that the difference is within its margin."""
    equivalent: set[int] = set()
    for rank, place in enumerate(sorted(places, key=lambda place: differences[place].equivalence_p_value)):
        if differences[place].equivalence_p_value > LEVEL / (len(places) - rank):
            break
        equivalent.add(place)
    return equivalent
