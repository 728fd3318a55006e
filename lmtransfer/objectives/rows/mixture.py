"""Rows from a mixture of corpora."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np
from typing_extensions import override

from lmtransfer.data.corpora.mixture import Sampling
from lmtransfer.data.token_shards import MixedStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows.base import Row, RowPlan, Rows
from lmtransfer.randomness import derive_seed, permutation

#: The error message for contiguous rows of a mixture.
CONTIGUOUS_MIXTURE = (
    "objective.rows.contiguous=true is not possible with a mixture of corpora: contiguous rows continue one text; "
    "use objective/rows=stream, or one corpus"
)


class MixedPlan(RowPlan):
    """One epoch of a mixture: as many rows as all parts have together, in the mixture's proportions.

    Part i has n_i rows in its first pass, and contributes a share q_i of the rows of an epoch: q_i ~ n_i^alpha, or by
    token weights, with or without caps (see ``data.corpora.mixture.Sampling``). A part is used pass by pass, each in
    its own random order. An epoch continues where the previous epoch ended: no row of a part is repeated before all
    other rows of the part have been used. A row, including both texts of a pair, belongs to a single part.
    """

    def __init__(self, rows: Rows, store: MixedStore, *, seed: int, epoch: int) -> None:
        if rows.contiguous:
            raise ConfigError(CONTIGUOUS_MIXTURE)
        self._names = list(store.parts)
        self.text = {name: rows.text(part) for name, part in store.parts.items()}
        seeds = [derive_seed(seed, "part", name) for name in self._names]

        def planned(part: int, number: int) -> RowPlan:
            try:
                return rows.plan(store.parts[self._names[part]], seed=seeds[part], epoch=number)
            except DataError as error:
                raise DataError(f"corpus.parts.{self._names[part]}: {error}") from error

        first = [planned(part, 0) for part in range(len(self._names))]
        counts = quotas({name: plan.lengths for name, plan in zip(self._names, first, strict=True)}, store.sampling)
        self._plans: list[RowPlan] = []
        lengths, parts, plans, numbers = [], [], [], []
        for part, count in enumerate(counts.values()):
            size = len(first[part].lengths)
            start, stop = epoch * count, (epoch + 1) * count
            for number in range(start // size, -(-stop // size)):
                plan = first[part] if number == 0 else planned(part, number)
                # If rows are sampled anew in each pass, the number of rows differs slightly between passes.
                places = np.arange(max(start - number * size, 0), min(stop - number * size, size)) % len(plan.lengths)
                row_numbers = permutation(len(plan.lengths), seeds[part], "pass", number)[places]
                lengths.append(plan.lengths[row_numbers])
                numbers.append(row_numbers)
                parts.append(np.full(len(row_numbers), part))
                plans.append(np.full(len(row_numbers), len(self._plans)))
                self._plans.append(plan)
        self.lengths = np.concatenate(lengths)
        self.parts = np.concatenate(parts)
        self._of_plan, self._numbers = np.concatenate(plans), np.concatenate(numbers)

    def row(self, index: int) -> Row:
        """Read a row; its key begins with the name of its part."""
        plan, name = self._plans[int(self._of_plan[index])], self._names[int(self.parts[index])]
        plan.text = self.text[name]
        row = plan.row(int(self._numbers[index]))
        return replace(row, key=f"{name}: {row.key}")

    @override
    def take(self, rows: np.ndarray) -> Self:
        old_plans, numbers = self._of_plan[rows], self._numbers[rows]
        plan_numbers, plan_indices = np.unique(old_plans, return_inverse=True)
        within = np.empty_like(numbers)
        plans = []
        for place, number in enumerate(plan_numbers.tolist()):
            indices = np.flatnonzero(plan_indices == place)
            within[indices] = np.arange(len(indices))
            plans.append(self._plans[number].take(numbers[indices]))
        return self.copy_without_text(
            lengths=self.lengths[rows], parts=self.parts[rows], _plans=plans, _of_plan=plan_indices, _numbers=within
        )


def quotas(lengths: Mapping[str, np.ndarray], sampling: Sampling) -> dict[str, int]:
    """Return the number of rows of each part in an epoch, at least 1, rounded by the largest remainders.

    Without caps, the sum is the number of all rows.
    """
    sizes = {name: len(rows) for name, rows in lengths.items()}
    means = {name: float(np.mean(rows)) for name, rows in lengths.items()}
    for name, mean in means.items():
        _check_cap(sampling.max_tokens.get(name), f"corpus.max_tokens.{name}", mean, f"a row has {mean:.0f} tokens")
        least = f"this part has {sizes[name]} rows, so one row is {1 / sizes[name]:.2g} epochs"
        _check_cap(sampling.max_epochs.get(name), f"corpus.max_epochs.{name}", 1 / sizes[name], least)
    exact = np.array(list(sampling.amounts(sizes, tokens_per_unit=means).values()))
    counts = np.floor(exact).astype(np.int64)
    missing = round(exact.sum()) - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return dict(zip(lengths, np.maximum(counts, 1).tolist(), strict=True))


def _check_cap(cap: float | None, key: str, least: float, why: str) -> None:
    if cap is not None and cap < least:
        raise ConfigError(f"{key}={cap:g} is less than one row ({why}): use a larger cap, or leave the part out")
