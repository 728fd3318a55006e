"""Holm's joint correction for the comparisons in one column of a table (Holm 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.compare import judged
from lmtransfer.verdicts.difference import LEVEL, VERDICTS, Difference


def corrected(differences: Sequence[Difference], *, margins: Sequence[float | None] = ()) -> list[Difference]:
    """Return the same comparisons, in the same order, with corrected verdicts.

    If there is no true difference at all, at most 5 % of columns contain any "better" or "worse", whatever the
    dependence between comparisons. The smallest of m p values is judged at 0.05 / m, the next at 0.05 / (m - 1) and so
    on, up to the first that fails; that one and all larger ones are judged at its level. An interval at ``level``
    therefore excludes 0 exactly if Holm's procedure finds a difference. The module ``difference`` describes the tests
    at such small levels. Comparisons without a p value (one seed, collapsed, ...) do not change and do not count.

    "equivalent" is judged in the same way, by the p values ``Difference.not_equivalent``: at most 5 % of columns
    contain an "equivalent" where the true difference is at least the margin.

    Args:
        differences: the differences in one column, as returned by ``compare_conditions``.
        margins: for each difference the size below which it does not matter, in the metric's unit: "no difference
            shown" becomes "equivalent" if two one-sided tests show that the difference is smaller. None for no test.
    """
    results = list(differences)
    if margins:
        results = [replace(one, margin=margin) for one, margin in zip(results, margins, strict=True)]
    places = [place for place, difference in enumerate(results) if difference.verdict in VERDICTS]
    equivalent = _equivalent(results, places)
    if len(places) < 2:
        for place in equivalent:
            results[place] = judged(
                results[place], excludes_zero=results[place].verdict in ("better", "worse"), equivalent=True
            )
        return results
    ranked = sorted((results[place].tail or 0.0, place) for place in places)
    level, so_far, failed = LEVEL, 0.0, False
    for rank, (chance, place) in enumerate(ranked):
        left = len(ranked) - rank
        so_far = max(so_far, min(1.0, left * chance))
        if not failed:
            level = LEVEL / left
            failed = chance > level
        one = replace(results[place], level=level, num_comparisons=len(ranked), corrected_p_value=so_far)
        results[place] = judged(one, excludes_zero=not failed, equivalent=place in equivalent)
    return results


def _equivalent(differences: Sequence[Difference], places: Sequence[int]) -> set[int]:
    """The indices at which Holm's procedure shows that the difference is within its margin."""
    places_of_equivalent: set[int] = set()
    for rank, place in enumerate(sorted(places, key=lambda place: differences[place].not_equivalent)):
        if differences[place].not_equivalent > LEVEL / (len(places) - rank):
            break
        places_of_equivalent.add(place)
    return places_of_equivalent
