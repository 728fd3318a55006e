"""Student's distribution and power against closed forms, published tables, integrals and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.refusals import refuses

from lmtransfer.verdicts.difference import chance, degrees_in_the_tail, reach
from lmtransfer.verdicts.power import MAX_SEEDS, combine, power, seeds_needed, smallest_detectable
from lmtransfer.verdicts.spread import critical_value, two_sided_p_value


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


@pytest.mark.parametrize("t", [0.0, 0.01, 0.7, 2.0, 13.0, 500.0, -2.0])
def test_chances_in_closed_form(t: float) -> None:
    assert two_sided_p_value(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(abs(t)), rel=1e-9)
    assert two_sided_p_value(t, 2) == pytest.approx(1 - abs(t) / math.sqrt(2 + t * t), rel=1e-7)
    assert two_sided_p_value(t, 1e9) == pytest.approx(math.erfc(abs(t) / math.sqrt(2)), rel=1e-6)


@pytest.mark.parametrize("degrees", [1.0, 1.37, 2.5, 7.9, 41.3, 2000.5])
@pytest.mark.parametrize("t", [0.3, 1.1, 3.4])
def test_chances_are_the_integral_of_the_density(degrees: float, t: float) -> None:
    # t = sqrt(df) tan(angle) turns the density into a power of the cosine over half a circle
    angles, weights = np.polynomial.legendre.leggauss(400)
    low = math.atan(t / math.sqrt(degrees))
    half = (math.pi / 2 - low) / 2
    tail = half * (weights * np.cos(low + half * (1 + angles)) ** (degrees - 1)).sum()
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    assert two_sided_p_value(t, degrees) == pytest.approx(2 * constant * tail, rel=1e-5)


@pytest.mark.parametrize("degrees", [1.0, 1.2, 3.7, 9.0, 250.0])
@pytest.mark.parametrize("level", [0.9, 0.05, 0.05 / 24, 1e-6])
def test_the_critical_value_has_the_chance_of_its_level(degrees: float, level: float) -> None:
    assert two_sided_p_value(critical_value(level, degrees), degrees) == pytest.approx(level, rel=1e-9)


def test_senseless_questions_are_refused() -> None:
    assert two_sided_p_value(math.inf, 3) == 0.0
    with refuses(ValueError, "degrees_of_freedom=0.0"):
        two_sided_p_value(1.0, 0.0)
    for level in (0.0, 1.0):
        with refuses(ValueError, "level", str(level)):
            critical_value(level, 3)


@pytest.mark.parametrize(("shift", "degrees"), [(0.0, 4), (2.5, 4), (3.953, 4), (3.0, 1), (4.0, 2), (3.1, 60)])
def test_power_is_the_share_of_draws_that_are_found(shift: float, degrees: int) -> None:
    rng = np.random.default_rng(0)
    draws = 400_000
    deviations = np.sqrt(rng.chisquare(degrees, draws) / degrees)
    found = (rng.standard_normal(draws) + shift) / deviations > critical_value(0.05, degrees)
    assert power(shift, degrees, 0.05) == pytest.approx(found.mean(), abs=0.004)


def test_the_smallest_detectable_difference_is_found_in_80_of_100_cases() -> None:
    for degrees in (1.0, 4.0, 17.3):
        smallest = smallest_detectable(0.7, degrees, level=0.01, chance=0.8)
        assert power(smallest / 0.7, degrees, 0.01) == pytest.approx(0.8, abs=1e-4)


def test_seeds_needed_are_the_fewest_that_find_it() -> None:
    wanted = seeds_needed(1.0, 5, [(0.5, 4.0)], [], level=0.05, chance=0.8)
    assert wanted is not None
    for num, enough in ((wanted, True), (wanted - 1, False)):
        assert (power(1.0 / math.sqrt(0.5 * 5 / num), num - 1, 0.05) >= 0.8) == enough
    # Of examples that are too few, no number of seeds makes up for it: 1 / sqrt(0.2) is 2.2 standard errors.
    assert seeds_needed(1.0, 5, [(0.5, 4.0)], [(0.2, 500.0)], level=0.05, chance=0.8) is None
    more = seeds_needed(1.0, 5, [(0.5, 4.0)], [(0.05, 500.0)], level=0.05, chance=0.8)
    assert more is not None
    assert wanted < more < MAX_SEEDS
    assert seeds_needed(0.0, 5, [(0.5, 4.0)], [], level=0.05, chance=0.8) is None


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
