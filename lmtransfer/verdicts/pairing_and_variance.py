"""The difference between two mean scores: how their seeds are paired, and the variance over seeds and examples.

A score is the sum of a true value and the random effects of its pretraining seed, its finetuning seed (subset, order,
head), the scored examples, and their interactions. The variance of each effect is estimated from sums of squares by
the method of moments. The sum of the variances has Satterthwaite's degrees of freedom (1946). The effect of the
examples is the limit of a bootstrap over examples (or over passages, if examples share one) with many samples; because
scores are means over examples, it has a closed form and needs no sampling. The effect of an example in one run is part
of both the seeds' spread and the examples' spread, and is counted once (Cameron, Gelbach and Miller 2011, with the
interaction computed from residuals).

Shape legend: R rows, P pretrainings, F finetuning seeds, N examples, G clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lmtransfer.verdicts.conditions import Condition, Examples
from lmtransfer.verdicts.intervals import combine

Key = frozenset[int | str]

Source = Literal["pretraining", "finetuning", "examples"]
#: The note on conditions whose examples are unknown.
NO_PREDICTIONS = "the examples' sampling error is not included, because no predictions were kept"


@dataclass(frozen=True, slots=True, eq=False)
class ConditionRows:
    """The scores of a condition, row by row.

    With one pretraining, or if all pretrainings were finetuned with the same seeds, a row is a finetuning seed,
    averaged over the pretrainings. If each pretraining has its own finetuning seeds, a row is a pretraining.

    Attributes:
        keys: the finetuning seeds in each row, by which the rows of two conditions are paired; length R.
        values: the score of each row, shape (R,).
        table: the scores by pretraining and finetuning seed, shape (P, R), if there are several pretrainings with the
            same seeds; else None.
        is_nested: whether a row is a pretraining.
        examples: the contribution of each example, shape (R, N); None if not known.
    """

    keys: tuple[Key, ...]
    values: np.ndarray
    table: np.ndarray | None
    is_nested: bool
    examples: np.ndarray | None

    def select(self, keys: Sequence[Key]) -> ConditionRows:
        """Return the rows with the given keys, in that order."""
        places = [self.keys.index(key) for key in keys]
        return replace(
            self,
            keys=tuple(keys),
            values=self.values[places],
            table=None if self.table is None else self.table[:, places],
            examples=None if self.examples is None else self.examples[places],
        )

    def average_groups(self, keys: Sequence[Key]) -> ConditionRows | None:
        """Average rows of single finetuning seeds into another condition's groups; None if a seed is missing."""
        places = {seed: row for row, key in enumerate(self.keys) for seed in key}
        if self.is_nested or self.table is not None or any(seed not in places for key in keys for seed in key):
            return None
        groups = [[places[seed] for seed in key] for key in keys]
        return replace(
            self,
            keys=tuple(keys),
            values=np.array([self.values[group].mean() for group in groups]),
            examples=None if self.examples is None else np.stack([self.examples[g].mean(axis=0) for g in groups]),
        )


def lay_out(condition: Condition, examples: np.ndarray | None) -> tuple[ConditionRows, list[str]]:
    """Arrange the scores of a condition in rows; also return notes on scores that were left out.

    Args:
        examples: the contribution of each example to each score, shape (S, N), or None.
    """
    values = np.array([score.value for score in condition.scores])
    if condition.constant:
        return ConditionRows((), values[:1], None, False, None if examples is None else examples[:1]), []
    places_by_score = {(score.pretraining, score.seed): place for place, score in enumerate(condition.scores)}
    seeds_by_pretraining = {
        name: [score.seed for score in condition.scores if score.pretraining == name] for name in condition.pretrainings
    }
    all_seeds = list(seeds_by_pretraining.values())
    common = [seed for seed in all_seeds[0] if all(seed in seeds for seeds in all_seeds)]
    have_own_seeds = len({seed for seeds in all_seeds for seed in seeds}) == len(condition.scores)
    if have_own_seeds and len(all_seeds) > 1:
        groups = [[places_by_score[name, seed] for seed in seeds] for name, seeds in seeds_by_pretraining.items()]
        return ConditionRows(
            keys=tuple(frozenset(seeds) for seeds in all_seeds),
            values=np.array([values[group].mean() for group in groups]),
            table=None,
            is_nested=True,
            examples=None if examples is None else np.stack([examples[group].mean(axis=0) for group in groups]),
        ), []
    places = np.array(
        [[places_by_score[name, seed] for seed in common] for name in seeds_by_pretraining], dtype=np.int64
    )
    left_out = len(condition.scores) - places.size
    notes = (
        [f"{left_out} scores are left out, because a pretraining run lacks their finetuning seed"] if left_out else []
    )
    if not common:  # pretrainings share only some seeds, so the rows would not be independent
        return ConditionRows((), np.array([values.mean()]), None, False, None), notes
    return ConditionRows(
        keys=tuple(frozenset((seed,)) for seed in common),
        values=values[places].mean(axis=0),
        table=values[places] if len(all_seeds) > 1 else None,
        is_nested=False,
        examples=None if examples is None else examples[places].mean(axis=0),
    ), notes


def pair_rows(
    one: Condition, other: Condition, rows: ConditionRows, others: ConditionRows
) -> tuple[ConditionRows, ConditionRows, list[str]] | None:
    """Pair the rows that two conditions share, in the same order; None if the design does not pair them."""
    if one.design is None or one.design != other.design:
        return None
    if rows.is_nested != others.is_nested:
        regrouped = others.average_groups(rows.keys) if rows.is_nested else rows.average_groups(others.keys)
        if regrouped is None:
            return None
        rows, others = (rows, regrouped) if rows.is_nested else (regrouped, others)
    shared = [key for key in rows.keys if key in set(others.keys)]
    if len(shared) < 2:
        return None
    left_out = len(rows.keys) + len(others.keys) - 2 * len(shared)
    notes = [f"{left_out} seeds are left out, because the other condition lacks them"] if left_out else []
    return rows.select(shared), others.select(shared), notes


@dataclass(frozen=True, slots=True)
class VariancePart:
    """A part of a variance.

    Attributes:
        source: "pretraining" (with the effect of the finetuning seeds, if each pretraining has its own), "finetuning"
            (with the effect of an example in one run), or "examples".
        variance: the part's contribution to the variance of the mean or difference, in the metric's unit squared.
    """

    source: Source
    variance: float
    degrees_of_freedom: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean score or a difference.

    Attributes:
        value: the estimate, in the metric's unit.
        standard_error: standard error of ``value``; None if a side has a single row.
        degrees_of_freedom: degrees of freedom of the standard error; None without a standard error.
        parts: the parts that add up to the variance.
        paired: whether the rows of two conditions were paired.
        has_spread: whether the rows, or the paired differences, have any spread.
        num_seeds: number of rows of each condition; 0 for a constant condition.
        notes: what could not be estimated, one line each.
    """

    value: float
    standard_error: float | None
    degrees_of_freedom: float | None
    parts: tuple[VariancePart, ...]
    paired: bool
    has_spread: bool
    num_seeds: tuple[int, int]
    notes: tuple[str, ...]


def estimate_difference(condition: Condition, control: Condition) -> Estimate:
    """Estimate the mean score of a condition minus that of its control."""
    examples, other_examples, clusters, notes = _match_examples(condition, control)
    (one, one_notes), (other, other_notes) = lay_out(condition, examples), lay_out(control, other_examples)
    notes += [*one_notes, *other_notes]
    if condition.constant or control.constant:
        both = _subtract(one, other, layout=other if condition.constant else one)
        if condition.constant and control.constant:
            return _constant_estimate(both, clusters, notes)
        estimate = _estimate([both], [both], clusters, notes, paired=False)
        seeds = estimate.num_seeds[0]
        return replace(estimate, num_seeds=(0, seeds) if condition.constant else (seeds, 0))
    pairs = pair_rows(condition, control, one, other)
    if pairs is None:
        return _estimate([one, other], [one, other], clusters, notes, paired=False)
    one, other, more = pairs
    both = _subtract(one, other, layout=replace(one, table=None))
    return _estimate([both], [one, other], clusters, [*notes, *more], paired=True)


def _subtract(one: ConditionRows, other: ConditionRows, *, layout: ConditionRows) -> ConditionRows:
    examples = None if one.examples is None or other.examples is None else one.examples - other.examples
    return replace(layout, values=one.values - other.values, examples=examples)


def _constant_estimate(row: ConditionRows, clusters: np.ndarray | None, notes: list[str]) -> Estimate:
    value = float(row.values[0])
    if row.examples is None:
        return Estimate(value, None, None, (), False, False, (0, 0), tuple(notes))
    part = _examples_part([row.examples], clusters, 0.0)
    error = math.sqrt(part.variance)
    return Estimate(value, error, part.degrees_of_freedom, (part,), False, error > 0, (0, 0), tuple(notes))


def _estimate(
    independent: Sequence[ConditionRows],
    sides: Sequence[ConditionRows],
    clusters: np.ndarray | None,
    notes: list[str],
    *,
    paired: bool,
) -> Estimate:
    """Return the mean of independent rows, minus the mean of the second set if there is one.

    Args:
        independent: one or two sets of rows (a condition, or paired differences).
        sides: the conditions themselves.
    """
    counts = [len(rows.keys) for rows in sides]
    num_seeds = (counts[0], counts[-1])
    means = [float(rows.values.mean()) for rows in independent]
    value = means[0] - means[1] if len(means) == 2 else means[0]
    if min(counts) < 2:
        return Estimate(value, None, None, (), paired, False, num_seeds, tuple(notes))
    parts = [
        VariancePart(
            "pretraining" if rows.is_nested else "finetuning",
            float(rows.values.var(ddof=1)) / len(rows.keys),
            len(rows.keys) - 1,
        )
        for rows in independent
    ]
    has_spread = all(np.ptp(rows.values) > 1e-9 * max(1.0, float(np.abs(rows.values).max())) for rows in independent)
    rows_variance = sum(part.variance for part in parts)
    parts += [_pretraining_part(rows.table) for rows in sides if rows.table is not None]
    if all(rows.examples is not None for rows in independent):
        parts.append(
            _examples_part(
                [rows.examples for rows in independent if rows.examples is not None], clusters, rows_variance
            )
        )
    error, degrees = combine([(part.variance, part.degrees_of_freedom) for part in parts])
    return Estimate(value, error, degrees, tuple(parts), paired, has_spread, num_seeds, tuple(notes))


def _pretraining_part(table: np.ndarray) -> VariancePart:
    num, seeds = table.shape
    means = table.mean(axis=1)
    residuals = table - means[:, None] - table.mean(axis=0) + table.mean()
    between = float(means.var(ddof=1)) / num
    within = float((residuals**2).sum()) / ((num - 1) * (seeds - 1)) / (num * seeds)
    return VariancePart("pretraining", max(0.0, between - within), num - 1)


def _examples_part(scores: Sequence[np.ndarray], clusters: np.ndarray | None, rows_variance: float) -> VariancePart:
    """Return the part of the examples that is not in the spread of the rows.

    Args:
        scores: contributions to the paired differences, or to the scores of each condition, shape (R, N).
        clusters: clusters of the examples, shape (N,); None if the examples are independent.
        rows_variance: the variance from the spread of the rows.
    """
    num = scores[0].shape[1]
    effects = scores[0].mean(axis=0) - (scores[1].mean(axis=0) if len(scores) == 2 else 0.0)
    totals = _sum_by_cluster((effects - effects.mean())[None], clusters)
    groups = totals.shape[1]
    if groups < 2:
        return VariancePart("examples", 0.0, 1.0)
    correction = groups / (groups - 1)
    examples_variance = correction * float((totals**2).sum()) / num**2
    shared_variance = 0.0
    for side in scores:
        rows = len(side)
        if rows == 1:
            continue
        residuals = side - side.mean(axis=1, keepdims=True) - side.mean(axis=0) + side.mean()
        squares = float((_sum_by_cluster(residuals, clusters) ** 2).sum())
        shared_variance += rows / (rows - 1) * correction * squares / (rows * num) ** 2
    return VariancePart(
        "examples", max(0.0, examples_variance - min(shared_variance, rows_variance)), float(groups - 1)
    )


def _sum_by_cluster(values: np.ndarray, clusters: np.ndarray | None) -> np.ndarray:
    """Sum over the examples of each cluster, from shape (R, N) to (R, G)."""
    if clusters is None:
        return values
    names, place = np.unique(clusters, return_inverse=True)
    totals = np.zeros((len(names), len(values)))
    np.add.at(totals, place, values.T)
    return totals.T


def _usable_examples(condition: Condition) -> tuple[Examples | None, list[str]]:
    """Return the examples of a condition if their means equal its scores, otherwise notes."""
    if condition.examples is None:
        return None, [NO_PREDICTIONS]
    values = np.array([score.value for score in condition.scores])
    off = np.abs(condition.examples.scores.mean(axis=1) - values)
    if (off > 1e-3 * np.maximum(1.0, np.abs(values))).any():
        return None, ["the examples' sampling error is not included, because the metric is not a mean over examples"]
    return condition.examples, []


def _match_examples(
    condition: Condition, control: Condition
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None, list[str]]:
    """Return the examples of two conditions in the same order, shape (S, N) each, their clusters (N,), and notes."""
    (one, notes), (other, more) = _usable_examples(condition), _usable_examples(control)
    if one is None or other is None:
        return None, None, None, list(dict.fromkeys([*notes, *more]))
    order, others = np.argsort(one.ids, kind="stable"), np.argsort(other.ids, kind="stable")
    if not np.array_equal(one.ids[order], other.ids[others]):
        note = "the examples' sampling error is not included, because the two sides have different examples"
        return None, None, None, [note]
    clusters = None if one.clusters is None else one.clusters[order]
    return one.scores[:, order], other.scores[:, others], clusters, []
