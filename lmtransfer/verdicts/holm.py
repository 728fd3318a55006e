"""Several comparisons in one column of a table, judged together (Holm 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.difference import JUDGED, LEVEL, Difference, judged


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The same comparisons, in the same order, with verdicts that hold together.

    With no true difference at all, at most 5 % of columns hold any "better" or "worse", however the comparisons hang
    together: the smallest of m p values is judged at 0.05 / m, the next at 0.05 / (m - 1) and so on, up to the first
    that fails; it and all larger ones are judged at its level. So an interval at ``level`` excludes 0 exactly where
    Holm's procedure finds a difference. Levels as small as these are judged as ``mixture`` says. Comparisons without
    anything to judge (one seed, collapsed, ...) are left as they are and do not count.

    Args:
        differences: of one column, as from ``compare_conditions``.
    """
    made = list(differences)
    places = [place for place, found in enumerate(made) if found.verdict in JUDGED]
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
