from __future__ import annotations

import math

import pytest

from lmtransfer.reporting.statistics import Spread, difference, spread
from lmtransfer.reporting.units import count, duration, in_percent, shown, shown_difference


def test_spread_is_the_closed_form():
    found = spread([2.0, 4.0, 9.0])
    assert found.mean == pytest.approx(5.0)
    assert found.median == 4.0
    assert found.deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))  # n - 1 in the denominator
    assert found.n == 3
    assert found.values == (2.0, 4.0, 9.0)


def test_a_single_seed_has_no_deviation_and_no_verdict():
    found = difference(spread([0.9]), spread([0.5, 0.6]))
    assert spread([0.9]).deviation is None
    assert found.standard_error is None
    assert found.verdict == "one seed, no spread"


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_standard_error_of_a_difference():
    run = Spread(mean=0.70, median=0.70, deviation=0.03, n=9)
    control = Spread(mean=0.66, median=0.66, deviation=0.04, n=4)
    found = difference(run, control)
    assert found.delta == pytest.approx(0.04)
    assert found.standard_error == pytest.approx(math.sqrt(0.03**2 / 9 + 0.04**2 / 4))


@pytest.mark.parametrize(
    ("gain", "higher", "verdict"),
    [
        (2.0, True, "better"),  # exactly two standard errors count
        (1.99, True, "no difference shown"),
        (-2.0, True, "worse"),
        (-1.99, True, "no difference shown"),
        (2.0, False, "worse"),
        (-2.0, False, "better"),
    ],
)
def test_verdict_needs_two_standard_errors(gain, higher, verdict):
    run = Spread(mean=gain, median=gain, deviation=1.0, n=2)
    control = Spread(mean=0.0, median=0.0, deviation=1.0, n=2)  # standard error 1
    assert difference(run, control, higher_is_better=higher).verdict == verdict


def test_a_side_without_spread_gives_no_verdict():
    flat = Spread(mean=0.5, median=0.5, deviation=0.0, n=3)
    spread_out = spread([0.7, 0.71, 0.72])
    assert difference(flat, flat).verdict == "seeds all alike"
    assert difference(spread_out, flat).verdict == "seeds all alike"
    assert difference(flat, spread_out).verdict == "seeds all alike"
    assert difference(spread_out, flat, majority=0.5).verdict == "control collapsed"
    assert difference(flat, spread_out, majority=0.5).verdict == "collapsed"
    assert difference(spread_out, spread([0.5, 0.49, 0.51]), majority=0.5).verdict == "better"
    assert difference(spread_out, spread([0.5, 0.49, 0.51]), control_collapsed=3).verdict == "control collapsed"


def test_a_collapse_and_seeds_without_spread_are_no_verdict():
    majority = spread([0.509, 0.509, 0.509])
    minority = spread([0.491, 0.491, 0.491])
    assert difference(majority, minority, collapsed=3).verdict == "collapsed"
    assert difference(majority, spread([0.45, 0.5, 0.48]), collapsed=3).verdict == "collapsed"
    assert difference(majority, minority).verdict == "seeds all alike"
    assert difference(spread([0.7, 0.71, 0.72]), spread([0.4, 0.41, 0.42]), collapsed=2).verdict == "better"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1.0k"),
        (13_120, "13.1k"),
        (999_960, "1.0M"),
        (3_200_000, "3.2M"),
        (2.5e11, "250G"),
    ],
)
def test_counts(value, text):
    assert count(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(4.2, "4.2 s"), (45, "45 s"), (750, "12.5 min"), (11_520, "3.2 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_metrics_are_shown_in_their_unit():
    assert [in_percent(name) for name in ("accuracy", "macro_f1", "validation/accuracy", "matthews", "loss")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    exact = ("exact", "best_exact", "HasAns_exact", "heq_q", "unfiltered_f1", "unanswerable")
    assert all(in_percent(name) for name in exact)
    assert not any(in_percent(name) for name in ("best_exact_thresh", "best_f1_thresh", "pearson", "spearman"))
    assert shown(0.6963, "accuracy") == "69.6"
    assert shown(4.0816, "loss") == "4.082"
    assert shown_difference(0.028, "accuracy") == "+2.8"
    assert shown_difference(-0.12, "loss") == "-0.120"
