"""Rows of several corpora in one epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lmtransfer.data.corpora.mixture import smoothed
from lmtransfer.data.store.store import MixedStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows.base import Row, RowPlan, Rows
from lmtransfer.randomness import derived_seed, permutation

#: The error message for contiguous rows of a mixture.
CONTIGUOUS_MIXTURE = (
    "objective.rows.contiguous=true is not possible with a mixture of corpora: contiguous rows continue one text; "
    "use objective/rows=stream, or one corpus"
)


class MixedPlan:
    """One epoch over a mixture: the total number of rows of all parts, in smoothed proportions.

    Part i has n_i rows in its first pass, and gives a share q_i of the rows of an epoch, with q_i ~ n_i^alpha (see
    ``data.corpora.mixture.smoothed``). The rows of a part come pass after pass, each pass in its own random order. An
    epoch continues where the previous epoch ended: no row of a part is repeated before all other rows of the part were
    used. A row belongs to one part, and so do both texts of a pair.

    Args:
        rows: how rows are cut from each part.
        store: the parts.
        seed: seed of rows and order.
        epoch: number of the epoch.

    Attributes:
        lengths: number of tokens of each row, int32, shape (N,).
        parts: number of the part of each row, int64, shape (N,).

    Raises:
        ConfigError: ``rows`` is contiguous; rows of several texts cannot continue each other.
        DataError: a part has no rows; the message names the part.
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
                # If rows are sampled again in each pass, the number of rows differs a little between passes.
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
        """Row ``index``; its key begins with the name of its part."""
        row = self._plans[int(self._of_plan[index])].row(int(self._numbers[index]))
        return replace(row, key=f"{self._names[int(self.parts[index])]}: {row.key}")


def quotas(sizes: np.ndarray, alpha: float) -> np.ndarray:
    """Number of rows of each part in an epoch: smoothed proportions of all rows, rounded by the largest remainders.

    Args:
        sizes: number of rows of each part, all above 0.
        alpha: see ``data.corpora.mixture.smoothed``.

    Returns:
        int64, with the same sum as ``sizes``, but at least one row per part.
    """
    exact = smoothed(sizes, alpha) * sizes.sum()
    counts = np.floor(exact).astype(np.int64)
    missing = int(sizes.sum() - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return np.maximum(counts, 1)
