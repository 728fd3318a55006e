"""The promises of the rule, tested on 100 simulated tables; ``make simulate`` uses 2,000."""

from __future__ import annotations

import math

import pytest
import scipy.stats
from support import simulated_verdicts as simulation

from lmtransfer.verdicts.intervals import critical_value, two_sided_p_value

#: Number of tables, with 24 comparisons each.
TABLES = 100


def test_in_closed_form() -> None:
    """The test of paired seeds is exact, so a table of 24 has a false verdict with a probability of at most 0.05."""
    for degrees in (2, 4):
        assert two_sided_p_value(critical_value(0.05 / 24, degrees), degrees) == pytest.approx(0.05 / 24)
    # The mean difference of 5 pairs has a standard error of sqrt(2 (1 - correlation) / 5) deviations.
    critical = critical_value(0.05, 4)
    shifts = [2.5 / math.sqrt(2 * (1 - correlation) / 5) for correlation in (0.0, 0.1, 0.3)]
    found = [scipy.stats.nct.sf(critical, 4, shift) for shift in shifts]
    assert found[0] == pytest.approx(0.835, abs=0.001)  # pairing costs power if the pairs are independent
    assert min(found[1:]) >= 0.85


def test_what_is_there_is_found() -> None:
    """Five seeds per side, 2.5 deviations apart, either unpaired and independent or paired and correlated."""
    for options in ({"paired": False}, {"correlation": 0.1}):
        found = simulation.simulate(simulation.seeds_world(5, comparisons=1, **options), 1000, seed=1, difference=2.5)
        assert found.found >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "3 seeds",
        "5 seeds, not paired, spreads 1 : 3",
        "3 x 3 of pretraining and finetuning",
        "5 seeds, 300 examples",
        "5 seeds against a constant, 300 examples",
        "both constant, 300 examples",
    ],
)
def test_tables_without_a_difference_hold_few_verdicts(name: str) -> None:
    allowed = 0.05 + 2 * math.sqrt(0.05 * 0.95 / TABLES)
    found = simulation.simulate(simulation.WORLDS[name], TABLES, seed=1)
    assert found.false_tables <= allowed
    assert 0.93 <= found.coverage <= 0.97
    assert simulation.falsely_equivalent(simulation.WORLDS[name], TABLES, seed=1) <= allowed
