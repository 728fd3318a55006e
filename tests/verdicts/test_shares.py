"""Shares of few items, compared with scipy's binomial test, and the coverage of intervals by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial, norm

from lmtransfer.verdicts.shares import (
    effective_items,
    effective_number,
    few_items_note,
    paired_difference,
    share_interval,
    share_p_value,
)


def _paired(wins: int, losses: int, ties: int) -> tuple[float, float, float]:
    differences = np.array([1.0] * wins + [-1.0] * losses + [0.0] * ties)
    return paired_difference(differences, np.full(len(differences), 0.25), np.zeros(len(differences), dtype=np.int64))


@pytest.mark.parametrize("num", [1, 2, 6, 29, 400])
def test_a_share_has_the_interval_of_clopper_and_pearson(num: int) -> None:
    for right in {0, 1, num // 3, num - 1, num}:
        test = binomtest(right, num, 0.5)
        assert share_interval(right / num, num) == pytest.approx(tuple(test.proportion_ci(method="exact")), abs=1e-9)
        assert share_p_value(right / num, num, 0.5) == pytest.approx(test.pvalue, abs=1e-9)
        for expected in (0.25, 0.9):  # twice the smaller tail, which is not what binomtest reports if they are unequal
            tails = [binomtest(right, num, expected, alternative=side).pvalue for side in ("less", "greater")]
            p_value = share_p_value(right / num, num, expected)
            assert p_value == pytest.approx(min(1.0, 2 * min(tails)), abs=1e-9)
            low, high = share_interval(right / num, num)
            assert (p_value <= 0.05) == (not low <= expected <= high)


@pytest.mark.parametrize(("wins", "losses", "ties"), [(6, 0, 0), (5, 0, 1), (4, 2, 0), (1, 9, 40), (14, 30, 500)])
def test_a_difference_of_few_items_has_mcnemars_exact_test(wins: int, losses: int, ties: int) -> None:
    low, high, p_value = _paired(wins, losses, ties)
    assert p_value == pytest.approx(binomtest(wins, wins + losses).pvalue)
    assert low < (wins - losses) / (wins + losses + ties) <= high
    assert -1 <= low < high <= 1
    assert (p_value <= 0.05) == (low > 0 or high < 0)


@pytest.mark.parametrize("num", [1, 6, 200])
def test_sides_that_differ_on_no_item_have_an_interval_with_a_width(num: int) -> None:
    low, high, p_value = _paired(0, 0, num)
    most = binomtest(0, num).proportion_ci().high
    assert (low, high, p_value) == (pytest.approx(-most), pytest.approx(most), 1.0)


@pytest.mark.parametrize("num", [3, 6, 12, 40])
def test_intervals_of_differences_hold_the_true_one_in_95_of_100_cases(num: int) -> None:
    outcomes = [(wins, losses) for wins in range(num + 1) for losses in range(num + 1 - wins)]
    found = np.array([_paired(wins, losses, num - wins - losses) for wins, losses in outcomes])
    counts = np.array([(wins, losses, num - wins - losses) for wins, losses in outcomes])
    for differ in (0.02, 0.1, 0.3, 0.6, 1.0):
        for wins in (0.5, 0.7, 0.95, 1.0):
            p, q = differ * wins, differ * (1 - wins)
            chances = multinomial.pmf(counts, num, [p, q, max(0.0, 1 - p - q)])
            holds = (found[:, 0] <= p - q + 1e-12) & (p - q - 1e-12 <= found[:, 1])
            assert float(chances[holds].sum()) >= (0.95 if num < 30 else 0.93)
            if wins == 0.5:
                assert float(chances[found[:, 2] <= 0.05].sum()) <= 0.055


def test_many_differences_have_the_normal_interval_of_the_strata() -> None:
    rng = np.random.default_rng(0)
    differences, strata = rng.choice([-1.0, 0.0, 0.5, 1.0], 700), np.repeat([0, 1], [200, 500])
    weights = np.where(strata == 0, 1 / 200, 1 / 500)  # the mean of two strata
    parts = (differences[:200], differences[200:])
    error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in parts)) / 2
    mean = np.mean([part.mean() for part in parts])
    low, high, p_value = paired_difference(differences, weights, strata)
    assert (low, high) == (pytest.approx(mean - 1.959964 * error), pytest.approx(mean + 1.959964 * error))
    assert p_value == pytest.approx(2 * norm.sf(abs(mean) / error))


def test_unequal_weights_are_worth_fewer_items() -> None:
    assert effective_number(np.full(6, 0.3)) == pytest.approx(6)
    assert effective_number(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    few = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0]), np.full(6, 1.0), np.array([0, 0, 0, 1, 1, 1])
    assert effective_items(*few) == pytest.approx(6)
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.random(400) < 0.95, rng.random(400) < 0.4]).astype(float)
    parts = (values[:400], values[400:])
    found = effective_items(values, np.ones(800), np.repeat([0, 1], 400))
    variance = sum(part.var(ddof=1) / 400 for part in parts) / 4  # strata that differ are worth more items
    assert found == pytest.approx(values.mean() * (1 - values.mean()) / variance)
    assert found > 800


@pytest.mark.parametrize(("num", "says"), [(1, "only 1 item:"), (6, "only 6 items:"), (29, "only 29 items:"), (30, "")])
def test_few_items_are_mentioned(num: int, says: str) -> None:
    assert few_items_note(num).startswith(says)
    assert bool(few_items_note(num)) == bool(says)
