"""Several comparisons in one column of a table, judged together (Holm 1979)."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.verdicts.difference import Difference


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The same comparisons, in the same order, with verdicts that hold together.

    With no true difference at all, at most 5 % of columns hold any "better" or "worse", however the comparisons hang
    together. Those without anything to judge (one seed, collapsed, ...) are left as they are and do not count.

    Args:
        differences: of one column, as from ``compare_arms``.
    """
    raise NotImplementedError
