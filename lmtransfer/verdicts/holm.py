"""Several comparisons in one column of a table, judged together (Holm 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.difference import LEVEL, Difference, judged


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The same comparisons, in the same order, with verdicts that hold together.

    With no true difference at all, at most 5 % of columns hold any "better" or "worse", however the comparisons hang
    together: the smallest of m p values is judged at 0.05 / m, the next at 0.05 / (m - 1) and so on, up to the first
    that fails; it and all larger ones are judged at its level. So an interval at ``level`` excludes 0 exactly where
    Holm's procedure finds a difference. Comparisons without anything to judge (one seed, collapsed, ...) are left as
    they are and do not count.

    Args:
        differences: of one column, as from ``compare_arms``.
    """
    made = list(differences)
    ranked = sorted((found.p_value, place) for place, found in enumerate(made) if found.p_value is not None)
    level, so_far, failed = LEVEL, 0.0, False
    for rank, (p_value, place) in enumerate(ranked):
        left = len(ranked) - rank
        so_far = max(so_far, min(1.0, left * p_value))
        if not failed:
            level = LEVEL / left
            failed = p_value > level
        made[place] = judged(
            replace(made[place], level=level, num_comparisons=len(ranked), corrected_p_value=so_far)
        )
    return made
