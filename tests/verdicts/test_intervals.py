"""Student's distribution and power, compared with closed forms, published tables and random draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from support.refusals import refuses

from lmtransfer.verdicts.intervals import (
    MAX_SEEDS,
    chance,
    combine,
    critical_value,
    degrees_in_the_tail,
    reach,
    seeds_needed,
    smallest_detectable,
    two_sided_p_value,
)


@pytest.mark.parametrize(
    ("degrees", "level", "wanted"),
    [  # Fisher and Yates 1963, table III
        (1, 0.05, 12.706),
        (2, 0.05, 4.303),
        (4, 0.05, 2.776),
        (4, 0.01, 4.604),
        (8, 0.05, 2.306),
        (10, 0.001, 4.587),
        (30, 0.1, 1.697),
        (120, 0.05, 1.980),
    ],
)
def test_critical_values_are_those_of_the_tables(degrees: float, level: float, wanted: float) -> None:
    assert critical_value(level, degrees) == pytest.approx(wanted, abs=6e-4)


def test_senseless_questions_are_refused() -> None:
    assert two_sided_p_value(math.inf, 3) == 0.0
    with refuses(ValueError, "degrees_of_freedom=0.0"):
        two_sided_p_value(1.0, 0.0)
    for level in (0.0, 1.0):
        with refuses(ValueError, "level", str(level)):
            critical_value(level, 3)


@pytest.mark.parametrize("degrees", [1, 4, 17, 60])
def test_the_smallest_detectable_difference_is_found_in_80_of_100_draws(degrees: int) -> None:
    smallest = smallest_detectable(0.7, degrees, level=0.05)
    rng = np.random.default_rng(0)
    deviations = np.sqrt(rng.chisquare(degrees, 400_000) / degrees)
    found = (rng.standard_normal(400_000) + smallest / 0.7) / deviations > critical_value(0.05, degrees)
    assert found.mean() == pytest.approx(0.8, abs=0.004)


def test_seeds_needed_are_the_fewest_that_find_it() -> None:
    wanted = seeds_needed(1.0, 5, [(0.5, 4.0)], [], level=0.05)
    assert wanted is not None
    for num, enough in ((wanted, True), (wanted - 1, False)):
        shift, critical = 1.0 / math.sqrt(0.5 * 5 / num), critical_value(0.05, num - 1)
        assert (scipy.stats.nct.sf(critical, num - 1, shift) >= 0.8) == enough
    # No number of seeds makes up for too few examples: 1 / sqrt(0.2) is 2.2 standard errors.
    assert seeds_needed(1.0, 5, [(0.5, 4.0)], [(0.2, 500.0)], level=0.05) is None
    more = seeds_needed(1.0, 5, [(0.5, 4.0)], [(0.05, 500.0)], level=0.05)
    assert more is not None
    assert wanted < more < MAX_SEEDS
    assert seeds_needed(0.0, 5, [(0.5, 4.0)], [], level=0.05) is None


def test_satterthwaite_of_two_equal_parts_has_their_degrees_together() -> None:
    error, degrees = combine([(2.0, 4.0), (2.0, 4.0)])
    assert (error, degrees) == (2.0, 8.0)
    assert combine([(2.0, 4.0), (0.0, 9.0)])[1] == 4.0
    assert combine([(0.0, 3.0)]) == (0.0, 3.0)


@pytest.mark.parametrize("difference", [1.0, 10.0, 30.0])
def test_a_sum_of_two_cauchy_variables_is_one(difference: float) -> None:
    found = chance(difference, [(1.0, 1.0), (4.0, 1.0)])
    assert found == pytest.approx(two_sided_p_value(difference / 3, 1), rel=1e-3)


@pytest.mark.parametrize("parts", [[(1.0, 4.0), (9.0, 2.0)], [(1.0, 4.0), (0.2, 3.0)], [(1.0, 4.0), (1.0, 900.0)]])
def test_the_chance_of_several_parts_is_the_share_of_draws(parts: list[tuple[float, float]]) -> None:
    rng = np.random.default_rng(0)
    drawn = sum(math.sqrt(variance) * rng.standard_t(df, 1_000_000) for variance, df in parts)
    for difference in (2.0, 8.0):
        wanted = (np.abs(drawn) > difference).mean()
        assert chance(difference, parts) == pytest.approx(wanted, rel=0.06)
    half = reach(0.01, tuple(parts))
    assert chance(half, parts) == pytest.approx(0.01, rel=1e-6)
    assert critical_value(0.01, degrees_in_the_tail(0.01, tuple(parts))) * combine(parts)[0] == pytest.approx(
        half, rel=1e-3
    )


def test_one_part_is_students_distribution() -> None:
    assert chance(3.0, [(4.0, 3.0), (0.0, 2.0)]) == two_sided_p_value(1.5, 3.0)
    assert degrees_in_the_tail(0.002, ((4.0, 3.0),)) == pytest.approx(3.0, rel=1e-3)
    assert chance(3.0, [(4.0, 300.0), (5.0, 400.0)]) == pytest.approx(math.erfc(1 / math.sqrt(2)))
