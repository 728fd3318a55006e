"""The verdict on a difference, alone and in a column, compared with the closure principle."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from lmtransfer.verdicts.conditions import Condition, Examples, Score, condition
from lmtransfer.verdicts.difference import VERDICTS, Difference
from lmtransfer.verdicts.intervals import critical_value
from lmtransfer.verdicts.verdict import compare_conditions, judge_column


@pytest.mark.parametrize(
    ("one", "other", "options", "verdict"),
    [
        (condition([0.9]), condition([0.5, 0.6]), {}, "one seed, no spread"),
        (condition([0.9]), condition([0.5]), {}, "one seed, no spread"),
        (condition([0.5] * 3), condition([0.5] * 3), {}, "seeds all alike"),
        (condition([0.7, 0.71, 0.72]), condition([0.5] * 3), {}, "seeds all alike"),
        (condition([0.5] * 3), condition([0.7, 0.71, 0.72]), {}, "seeds all alike"),
        (condition([0.7, 0.71, 0.72]), condition([0.6, 0.61, 0.62]), {}, "seeds all alike"),  # equal gaps
        (condition([0.7, 0.71, 0.72]), condition([0.5] * 3), {"majority": 0.5}, "control collapsed"),
        (condition([0.5] * 3), condition([0.7, 0.71, 0.72]), {"majority": 0.5}, "collapsed"),
        (condition([0.7, 0.71, 0.72]), replace(condition([0.5] * 3), constant=True), {}, "better"),
        (condition([0.7, 0.71, 0.72]), replace(condition([0.5] * 3), constant=True), {"majority": 0.5}, "better"),
        (condition([0.7, 0.71, 0.72]), condition([0.5, 0.49, 0.51]), {"majority": 0.72}, "better but below a baseline"),
        (condition([0.7, 0.71, 0.72]), condition([0.5, 0.49, 0.51]), {"baseline": 0.72}, "better but below a baseline"),
        (condition([0.7, 0.71, 0.72]), condition([0.9, 0.92, 0.91]), {"baseline": 0.95}, "worse"),
        (condition([0.7, 0.71, 0.72]), condition([0.5, 0.49, 0.51]), {"majority": 0.5}, "better"),
        (condition([0.7, 0.71, 0.72]), replace(condition([0.5, 0.49, 0.51]), collapsed=3), {}, "control collapsed"),
        (replace(condition([0.509, 0.5, 0.51]), collapsed=3), condition([0.4, 0.45, 0.41]), {}, "collapsed"),
        (replace(condition([0.7, 0.71, 0.73]), collapsed=2), condition([0.4, 0.42, 0.41]), {}, "better"),
        (condition([0.7, 0.71, 0.73]), condition([0.4, 0.42, 0.41]), {"settings_differ": True}, "settings differ"),
    ],
)
def test_what_is_no_verdict(one: Condition, other: Condition, options: dict, verdict: str) -> None:
    found = compare_conditions(one, other, **options)
    assert found.verdict == verdict
    assert (found.p_value is None) == (found.interval is None) == (verdict not in (*VERDICTS, "settings differ"))
    assert found.delta == pytest.approx(one.spread.mean - other.spread.mean)
    if verdict == "one seed, no spread":
        assert (found.standard_error, found.interval, found.detectable_difference, found.seeds_needed) == (None,) * 4


def test_the_interval_decides() -> None:
    # A paired difference with 2 degrees of freedom just below and just above its critical value.
    for factor, verdict in ((0.999, "no difference shown"), (1.001, "better"), (-1.001, "worse")):
        center = factor * critical_value(0.05, 2) / math.sqrt(3)
        found = compare_conditions(condition([center - 1, center, center + 1]), condition([0.0, 1e-9, 0.0]))
        assert found.verdict == verdict
        assert found.interval is not None
        assert (found.interval[0] <= 0 <= found.interval[1]) == (verdict == "no difference shown")


@pytest.mark.parametrize(
    ("one", "other", "scope"),
    [
        (["a"], [None], "this checkpoint"),
        (["a", "b"], [None], "these checkpoints"),
        (["a", "b", "c"], [None], "this recipe"),
        (["a", "b", "c"], ["x"], "this checkpoint"),
        (["a", "b", "c"], ["x", "y", "z"], "this recipe"),
        ([None], [None], "this recipe"),
    ],
)
def test_a_verdict_names_what_it_is_of(one: list, other: list, scope: str) -> None:
    def side(names: list, value: float) -> Condition:
        rng = np.random.default_rng(0)
        return Condition(tuple(Score(value + rng.normal(), seed, name) for name in names for seed in range(4)))

    found = compare_conditions(side(one, 5.0), side(other, 0.0))
    assert found.scope == scope
    assert found.num_pretrainings == (sum(map(bool, one)), sum(map(bool, other)))


def of_chance(p_value: float) -> Difference:
    """Return a difference of four pairs with this p value."""
    center = critical_value(p_value, 3) / 2  # in units of the standard error, which is 1 / sqrt(4)
    offsets = np.array([-1.0, 1.0, -1.0, 1.0]) * math.sqrt(3 / 4)
    return compare_conditions(condition(list(center + offsets)), condition([0.0, 0.0, 1e-12, 0.0]))


@pytest.mark.parametrize("seed", range(8))
def test_holm_is_the_procedure_of_all_intersections(seed: int) -> None:
    """Closure principle: a difference is found if Bonferroni rejects every set of hypotheses that contains it."""
    rng = np.random.default_rng(seed)
    chances = rng.choice([0.003, 0.009, 0.012, 0.016, 0.024, 0.03, 0.06, 0.5], size=5)
    assert [of_chance(p).p_value for p in chances] == pytest.approx(chances, rel=1e-6)
    found = judge_column([of_chance(p) for p in chances])
    for place, one in enumerate(found):
        sets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size) if place in s]
        smallest = max(min(1.0, len(s) * min(chances[list(s)])) for s in sets)
        assert one.corrected_p_value == pytest.approx(smallest, rel=1e-6)
        assert (one.verdict == "better") == (smallest <= 0.05)
        assert one.interval is not None
        assert (one.interval[0] > 0) == (one.verdict == "better")
        assert one.num_comparisons == 5


def test_what_has_nothing_to_judge_does_not_count_in_a_column() -> None:
    found = judge_column([of_chance(0.04), compare_conditions(condition([0.9]), condition([0.5])), of_chance(0.9)])
    assert [one.verdict for one in found] == ["no difference shown", "one seed, no spread", "no difference shown"]
    assert [one.num_comparisons for one in found] == [2, 1, 2]
    assert of_chance(0.04).verdict == "better"
    assert judge_column([]) == []


def constant(value: float, contributions: np.ndarray | None = None) -> Condition:
    examples = None if contributions is None else Examples(contributions[None], np.arange(len(contributions)))
    return Condition((Score(value, 0, "a"),), examples, constant=True)


def test_a_constant_at_the_majority_has_not_collapsed() -> None:
    seeds = condition([0.7, 0.71, 0.73])
    assert compare_conditions(seeds, constant(0.5), majority=0.5).verdict == "better"
    assert compare_conditions(constant(0.5), seeds, majority=0.5).verdict == "worse"


@pytest.mark.parametrize(("center", "margin"), [(0.1, 2.0), (0.1, 5.0), (-0.4, 3.0), (0.1, 0.05), (4.0, 20.0)])
def test_equivalence_is_two_one_sided_tests(center: float, margin: float) -> None:
    values = center + np.array([-0.9, 0.2, 1.1, -0.6, 0.2])
    found = compare_conditions(condition(values), constant(0.0))
    low = scipy.stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    high = scipy.stats.ttest_1samp(values, margin, alternative="less").pvalue
    is_within, differs = max(low, high) <= 0.05, scipy.stats.ttest_1samp(values, 0).pvalue <= 0.05
    (judged,) = judge_column([found], margins=[margin])
    assert judged.verdict == ("better" if differs else "equivalent" if is_within else "no difference shown")
    assert found.margin is None
    assert Difference.from_values(judged.as_values()) == judged
    if is_within:
        assert judged.equivalence_p_value == pytest.approx(max(low, high))


def test_equivalence_in_a_column_is_holms_procedure_of_its_own() -> None:
    values = np.array([-0.9, 0.2, 1.1, -0.6, 0.2])
    margins = [1.2, 1.5, 3.0, 0.1, 2.1]
    alone = [compare_conditions(condition(values), constant(0.0)) for _ in margins]
    chances = [scipy.stats.ttest_1samp(values, margin, alternative="less").pvalue for margin in margins]
    expected, still = [False] * 5, True
    for rank, place in enumerate(np.argsort(chances)):
        still &= chances[place] <= 0.05 / (5 - rank)
        expected[place] = still
    found = judge_column(alone, margins=margins)
    assert [one.verdict == "equivalent" for one in found] == expected
    assert sum(expected) in range(1, 5)


def test_values_are_plain_and_read_back() -> None:
    found = judge_column(
        [
            compare_conditions(condition([3.0, 2.9, 3.2]), condition([0.0, 0.1, 0.0])),
            compare_conditions(condition([0.3, -0.2, 0.4]), condition([0.0, 0.1, 0.0])),
        ]
    )
    for one in found:
        written = json.loads(json.dumps(one.as_values(), allow_nan=False))
        assert Difference.from_values(written) == one
    alone = compare_conditions(condition([0.9]), condition([0.5]))
    assert Difference.from_values(json.loads(json.dumps(alone.as_values()))) == alone
    assert Difference.from_values(None) is None
