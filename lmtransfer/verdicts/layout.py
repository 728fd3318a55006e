"""The scores of a condition arranged as independent rows.

Shape letters: ``R`` rows, ``P`` pretrainings, ``F`` finetuning seeds, ``N`` examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmtransfer.verdicts.conditions import Condition

Key = frozenset[int | str]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The scores of a condition, row by row.

    With one pretraining, or if all pretrainings were finetuned with the same seeds, a row is a finetuning seed,
    averaged over the pretrainings. If each pretraining has its own finetuning seeds, a row is a pretraining.

    Attributes:
        keys: the finetuning seeds in each row, by which the rows of two conditions are paired. Length R.
        values: the score of each row, shape (R,).
        crossed: the scores by pretraining and finetuning seed, shape (P, R), if there are several pretrainings with the
            same seeds; else None.
        nested: whether a row is a pretraining.
        examples: the contribution of each example, shape (R, N); None if not known.
    """

    keys: tuple[Key, ...]
    values: np.ndarray
    crossed: np.ndarray | None
    nested: bool
    examples: np.ndarray | None

    def of(self, keys: Sequence[Key]) -> Rows:
        """The rows with the given keys, in that order."""
        places = [self.keys.index(key) for key in keys]
        return replace(
            self,
            keys=tuple(keys),
            values=self.values[places],
            crossed=None if self.crossed is None else self.crossed[:, places],
            examples=None if self.examples is None else self.examples[places],
        )

    def grouped(self, keys: Sequence[Key]) -> Rows | None:
        """Rows of single finetuning seeds, averaged into the groups of another condition; None if a seed is missing."""
        places = {seed: row for row, key in enumerate(self.keys) for seed in key}
        if self.nested or self.crossed is not None or any(seed not in places for key in keys for seed in key):
            return None
        groups = [[places[seed] for seed in key] for key in keys]
        return replace(
            self,
            keys=tuple(keys),
            values=np.array([self.values[group].mean() for group in groups]),
            examples=None if self.examples is None else np.stack([self.examples[g].mean(axis=0) for g in groups]),
        )


def constant_row(condition: Condition, examples: np.ndarray | None) -> Rows:
    """The single row of a constant condition; ``examples`` as in ``lay_out``."""
    values = np.array([condition.scores[0].value])
    return Rows((), values, None, False, None if examples is None else examples[:1])


def lay_out(condition: Condition, examples: np.ndarray | None) -> tuple[Rows, list[str]]:
    """The rows of a condition, and notes on what was left out.

    Args:
        condition: the condition with its scores.
        examples: the contribution of each example to each score, shape (S, N), or None.
    """
    values = np.array([score.value for score in condition.scores])
    place_of = {(score.pretraining, score.seed): place for place, score in enumerate(condition.scores)}
    seeds_of = {
        name: [score.seed for score in condition.scores if score.pretraining == name] for name in condition.pretrainings
    }
    common = [seed for seed in seeds_of[condition.pretrainings[0]] if all(seed in seeds for seeds in seeds_of.values())]
    own = len({seed for seeds in seeds_of.values() for seed in seeds}) == len(condition.scores)
    if own and len(seeds_of) > 1:
        groups = [[place_of[name, seed] for seed in seeds] for name, seeds in seeds_of.items()]
        return Rows(
            keys=tuple(frozenset(seeds) for seeds in seeds_of.values()),
            values=np.array([values[group].mean() for group in groups]),
            crossed=None,
            nested=True,
            examples=None if examples is None else np.stack([examples[group].mean(axis=0) for group in groups]),
        ), []
    places = np.array([[place_of[name, seed] for seed in common] for name in seeds_of], dtype=np.int64)
    left_out = len(condition.scores) - places.size
    notes = [f"{left_out} scores left out: not every pretraining has their finetuning seed"] if left_out else []
    if not common:  # only some seeds are shared by pretrainings, so the rows would not be independent
        return Rows((), np.array([values.mean()]), None, False, None), notes
    return Rows(
        keys=tuple(frozenset((seed,)) for seed in common),
        values=values[places].mean(axis=0),
        crossed=values[places] if len(seeds_of) > 1 else None,
        nested=False,
        examples=None if examples is None else examples[places].mean(axis=0),
    ), notes


def paired(one: Condition, other: Condition, rows: Rows, others: Rows) -> tuple[Rows, Rows, list[str]] | None:
    """The rows that two conditions share, in the same order; None if the design does not pair them.

    Args:
        one: the first condition.
        other: the second condition.
        rows: the rows of ``one``.
        others: the rows of ``other``.
    """
    if one.design is None or one.design != other.design:
        return None
    if rows.nested != others.nested:
        regrouped = others.grouped(rows.keys) if rows.nested else rows.grouped(others.keys)
        if regrouped is None:
            return None
        rows, others = (rows, regrouped) if rows.nested else (regrouped, others)
    shared = [key for key in rows.keys if key in set(others.keys)]
    if len(shared) < 2:
        return None
    left_out = len(rows.keys) + len(others.keys) - 2 * len(shared)
    notes = [f"{left_out} seeds left out, which the other condition does not have"] if left_out else []
    return rows.of(shared), others.of(shared), notes
