"""The comparison of two conditions: the verdict on their difference, or the reason why there is no verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.difference import LEVEL, Difference, Scope, Verdict
from lmtransfer.verdicts.spread import interval_around, two_sided_p_value
from lmtransfer.verdicts.variance import Estimate, estimate_difference, estimate_score


def compare_conditions(
    condition: Condition,
    control: Condition,
    *,
    higher_is_better: bool = True,
    majority: float | None = None,
    baseline: float | None = None,
    settings_differ: bool = False,
) -> Difference:
    """Compare two conditions and judge their difference alone; ``holm.correct_column`` judges a whole column together.

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
    """Whether the mean score is worse than any of the others."""
    mean, sign = condition.spread.mean, 1.0 if higher_is_better else -1.0
    return any(sign * mean < sign * other for other in others if other is not None)


def score_interval(condition: Condition, *, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the limits of a condition's mean score at ``1 - level``, over its seeds and, if known, its examples."""
    estimate = estimate_score(condition)
    return interval_around(estimate.value, estimate.standard_error, estimate.degrees_of_freedom, level)


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

    A constant condition never counts as collapsed: such answers are its optimum.
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
    """Return the scope of a verdict, from the side with fewer checkpoints; random weights do not count."""
    fewest = min((num for num in (_num_pretrainings(condition), _num_pretrainings(control)) if num), default=3)
    return "this checkpoint" if fewest == 1 else "these checkpoints" if fewest == 2 else "this recipe"
