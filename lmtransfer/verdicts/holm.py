"""Judging the comparisons in one column of a table together (Holm 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.compare import judged
from lmtransfer.verdicts.difference import LEVEL, VERDICTS, Difference


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The same comparisons, in the same order, with corrected verdicts.

    If there is no true difference at all, at most 5 % of columns contain any "better" or "worse", whatever the
    dependence between comparisons. The smallest of m p values is judged at 0.05 / m, the next at 0.05 / (m - 1) and so
    on, up to the first that fails; this one and all larger ones are judged at its level. An interval at ``level``
    therefore excludes 0 exactly when Holm's procedure finds a difference. Such small levels are judged as described in
    ``mixture``. Comparisons without a p value (one seed, collapsed, ...) are not changed and do not count.

    Args:
        differences: of one column, as returned by ``compare_conditions``.
    """
    made = list(differences)
    places = [place for place, found in enumerate(made) if found.verdict in VERDICTS]
    if len(places) < 2:
        return made
    ranked = sorted((made[place].tail or 0.0, place) for place in places)
    level, so_far, failed = LEVEL, 0.0, False
    for rank, (chance, place) in enumerate(ranked):
        left = len(ranked) - rank
        so_far = max(so_far, min(1.0, left * chance))
        if not failed:
            level = LEVEL / left
            failed = chance > level
        one = replace(made[place], level=level, num_comparisons=len(ranked), corrected_p_value=so_far)
        made[place] = judged(one, shown=not failed)
    return made
