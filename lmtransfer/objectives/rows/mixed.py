"""Rows of several corpora in one epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lmtransfer.data.corpora.mixture import smoothed
from lmtransfer.data.store.store import MixedStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows.base import Row, RowPlan, Rows
from lmtransfer.randomness import derived_seed, permutation

#: What is said where rows that go on from one another are wanted of a mixture.
CONTIGUOUS_MIXTURE = (
    "objective.rows.contiguous=true does not fit a mixture of corpora: rows that go on from one another are of one "
    "text; use objective/rows=stream, or one corpus"
)


class MixedPlan:
    """One epoch over a mixture: as many rows as the parts have together, in their smoothed proportions.

    Part i has n_i rows in its first pass, and gives q_i of an epoch's rows, with q_i ~ n_i^alpha (see
    ``data.corpora.mixture.smoothed``). Its rows come pass after pass, each in an order of its own, and an epoch goes
    on where the one before ended: no row of a part is seen again before all of its others were. A row is of one part,
    and so are both texts of a pair.

    Args:
        rows: how rows are cut from each part.
        store: the parts.
        seed: of rows and order.
        epoch: which epoch.

    Attributes:
        lengths: tokens of each row, int32, shape (N,).
        parts: number of the part that each row is of, int64, shape (N,).

    Raises:
        ConfigError: the rows go on from one another, which the rows of several texts do not.
        DataError: a part has no rows; the message names it.
    """

    def __init__(self, rows: Rows, store: MixedStore, *, seed: int, epoch: int) -> None:
        if rows.contiguous:
            raise ConfigError(CONTIGUOUS_MIXTURE)
        self._names = list(store.parts)
        seeds = [derived_seed(seed, "part", name) for name in self._names]

        def planned(part: int, number: int) -> RowPlan:
            try:
                return rows.plan(store.parts[self._names[part]], seed=seeds[part], epoch=number)
            except DataError as error:
                raise DataError(f"corpus.parts.{self._names[part]}: {error}") from error

        first = [planned(part, 0) for part in range(len(self._names))]
        sizes = np.array([len(plan.lengths) for plan in first])
        self._plans: list[RowPlan] = []
        lengths, parts, plans, numbers = [], [], [], []
        for part, (size, count) in enumerate(zip(sizes.tolist(), quotas(sizes, store.alpha).tolist(), strict=True)):
            start, stop = epoch * count, (epoch + 1) * count
            for number in range(start // size, -(-stop // size)):
                plan = first[part] if number == 0 else planned(part, number)
                # Passes of rows that are drawn anew differ a little in their number of rows.
                places = np.arange(max(start - number * size, 0), min(stop - number * size, size)) % len(plan.lengths)
                chosen = permutation(len(plan.lengths), seeds[part], "pass", number)[places]
                lengths.append(plan.lengths[chosen])
                numbers.append(chosen)
                parts.append(np.full(len(chosen), part))
                plans.append(np.full(len(chosen), len(self._plans)))
                self._plans.append(plan)
        self.lengths = np.concatenate(lengths)
        self.parts = np.concatenate(parts)
        self._of_plan, self._numbers = np.concatenate(plans), np.concatenate(numbers)

    def row(self, index: int) -> Row:
        """Row ``index``; its key begins with its part."""
        row = self._plans[int(self._of_plan[index])].row(int(self._numbers[index]))
        return replace(row, key=f"{self._names[int(self.parts[index])]}: {row.key}")


def quotas(sizes: np.ndarray, alpha: float) -> np.ndarray:
    """Rows of each part in an epoch: the smoothed proportions of all rows, rounded by the largest remainders.

    Args:
        sizes: rows of each part, all above 0.
        alpha: see ``data.corpora.mixture.smoothed``.

    Returns:
        int64, as many in all as ``sizes``, at least one a part.
    """
    exact = smoothed(sizes, alpha) * sizes.sum()
    counts = np.floor(exact).astype(np.int64)
    missing = int(sizes.sum() - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return np.maximum(counts, 1)
