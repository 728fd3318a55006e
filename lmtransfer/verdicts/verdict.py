"""The verdict on the difference between two conditions, alone or in a column, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.difference import LEVEL, VERDICTS, Difference, Scope, Verdict
from lmtransfer.verdicts.intervals import two_sided_p_value
from lmtransfer.verdicts.pairing_and_variance import Estimate, estimate_difference


def compare_conditions(
    condition: Condition,
    control: Condition,
    *,
    higher_is_better: bool = True,
    majority: float | None = None,
    baseline: float | None = None,
    settings_differ: bool = False,
) -> Difference:
    """Compare two conditions and judge their difference alone; ``judge_column`` judges a whole column together.

    Args:
        condition: the pretrained condition, or one of two groups.
        majority: the score of always predicting the most common label, if known.
        baseline: the score of the better word-count baseline, if known.
        settings_differ: whether anything but the weights differs.
    """
    estimate = estimate_difference(condition, control)
    missing = _missing_verdict(condition, control, estimate, majority, settings_differ=settings_differ)
    p_value = _p_value(estimate) if missing in (None, "settings differ") else None
    difference = Difference(
        delta=estimate.value,
        verdict="no difference shown" if missing is None else missing,
        scope=_verdict_scope(condition, control),
        standard_error=estimate.standard_error,
        degrees_of_freedom=estimate.degrees_of_freedom,
        p_value=p_value,
        paired=estimate.paired,
        num_seeds=estimate.num_seeds,
        num_pretrainings=(_num_pretrainings(condition), _num_pretrainings(control)),
        parts=estimate.parts,
        notes=estimate.notes,
        higher_is_better=higher_is_better,
        is_below=_is_below(condition, (majority, baseline), higher_is_better=higher_is_better),
        corrected_p_value=p_value,
    )
    return (
        difference
        if p_value is None or missing is not None
        else add_verdict(difference, excludes_zero=p_value <= LEVEL)
    )


def add_verdict(difference: Difference, *, excludes_zero: bool, equivalent: bool = False) -> Difference:
    """Add the verdict to a difference."""
    gain = difference.delta if difference.higher_is_better else -difference.delta
    unclear: Verdict = "equivalent" if equivalent else "no difference shown"
    return replace(difference, verdict=unclear if not excludes_zero else _better(difference) if gain > 0 else "worse")


def _better(difference: Difference) -> Verdict:
    return "better but below a baseline" if difference.is_below else "better"


def _is_below(condition: Condition, others: Sequence[float | None], *, higher_is_better: bool) -> bool:
    mean, sign = condition.spread.mean, 1.0 if higher_is_better else -1.0
    return any(sign * mean < sign * other for other in others if other is not None)


def _p_value(estimate: Estimate) -> float | None:
    if not estimate.standard_error or estimate.degrees_of_freedom is None:
        return None
    return two_sided_p_value(estimate.value / estimate.standard_error, estimate.degrees_of_freedom)


def _missing_verdict(
    condition: Condition, control: Condition, estimate: Estimate, majority: float | None, *, settings_differ: bool
) -> Verdict | None:
    """Return the most serious reason why there is no verdict; None if there is a verdict."""
    if estimate.standard_error is None:
        return "no examples" if condition.constant and control.constant else "one seed, no spread"
    if _has_collapsed(condition, majority):
        return "collapsed"
    if _has_collapsed(control, majority):
        return "control collapsed"
    if _is_flat(condition) or _is_flat(control) or not estimate.has_spread:
        return "seeds all alike"
    return "settings differ" if settings_differ else None


def _has_collapsed(condition: Condition, majority: float | None) -> bool:
    """Whether every seed predicts only one label, or scores exactly the same as the majority baseline.

    A constant condition never counts as collapsed: such predictions are its optimum.
    """
    if condition.constant:
        return False
    values = [score.value for score in condition.scores]
    at_majority = majority is not None and all(math.isclose(value, majority, rel_tol=1e-9) for value in values)
    return condition.collapsed >= len(values) or at_majority


def _is_flat(condition: Condition) -> bool:
    if condition.constant:
        return False
    values = [score.value for score in condition.scores]
    return all(math.isclose(value, values[0], rel_tol=1e-12) for value in values)


def _num_pretrainings(condition: Condition) -> int:
    return sum(name is not None for name in condition.pretrainings)


def _verdict_scope(condition: Condition, control: Condition) -> Scope:
    """Return the scope of a verdict, which depends on the side with fewer checkpoints; random weights do not count."""
    fewest = min((num for num in (_num_pretrainings(condition), _num_pretrainings(control)) if num), default=3)
    return "this checkpoint" if fewest == 1 else "these checkpoints" if fewest == 2 else "this recipe"


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for multiple comparisons (Holm 1979), in the same order."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def judge_column(differences: Sequence[Difference], *, margins: Sequence[float | None] = ()) -> list[Difference]:
    """Correct the verdicts of the comparisons in a column and return the comparisons in the same order.

    If there is no true difference at all, at most 5 % of columns contain any "better" or "worse", however the
    comparisons depend on each other. The smallest of m p values is tested at 0.05 / m, the next at 0.05 / (m - 1) and
    so on, up to the first that fails; this p value and all larger ones are tested at the level of the first failure.
    An interval at ``level`` therefore excludes 0 exactly if Holm's procedure finds a difference. The module
    ``intervals`` describes the tests at such small levels. Comparisons without a p value (one seed, collapsed, ...)
    do not change and do not count.

    "equivalent" is tested in the same way, with the p values ``Difference.equivalence_p_value``: at most 5 % of columns
    contain an "equivalent" whose true difference is at least the margin.

    Args:
        margins: for each difference the size below which the difference does not matter, in the metric's unit, or None
            for no test: "no difference shown" becomes "equivalent" if two one-sided tests show that the difference is
            smaller.
    """
    results = list(differences)
    if margins:
        results = [replace(result, margin=margin) for result, margin in zip(results, margins, strict=True)]
    places = [place for place, difference in enumerate(results) if difference.verdict in VERDICTS]
    equivalent = _equivalent_places(results, places)
    if len(places) < 2:
        for place in equivalent:
            results[place] = add_verdict(
                results[place], excludes_zero=results[place].verdict in ("better", "worse"), equivalent=True
            )
        return results
    p_values = [results[place].tail_probability or 0.0 for place in places]
    ranked = sorted(zip(p_values, places, holm(p_values), strict=True))
    level, failed = LEVEL, False
    for rank, (p_value, place, corrected_p_value) in enumerate(ranked):
        if not failed:
            level = LEVEL / (len(ranked) - rank)
            failed = p_value > level
        result = replace(results[place], level=level, num_comparisons=len(ranked), corrected_p_value=corrected_p_value)
        results[place] = add_verdict(result, excludes_zero=not failed, equivalent=place in equivalent)
    return results


def _equivalent_places(differences: Sequence[Difference], places: Sequence[int]) -> set[int]:
    """Return the indices at which Holm's procedure shows that the difference is within its margin."""
    equivalent: set[int] = set()
    for rank, place in enumerate(sorted(places, key=lambda place: differences[place].equivalence_p_value)):
        if differences[place].equivalence_p_value > LEVEL / (len(places) - rank):
            break
        equivalent.add(place)
    return equivalent
