"""What the rule promises, in simulated tables; ``scripts/simulate_verdicts.py`` does it with 2,000."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lmtransfer.verdicts.power import power
from lmtransfer.verdicts.student import critical, two_sided

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate_verdicts.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate_verdicts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_in_closed_form() -> None:
    """Pairs of seeds are judged by an exact test, so that a table of 24 is wrong in at most 24 times 0.05 / 24."""
    for degrees in (2, 4):
        assert two_sided(critical(0.05 / 24, degrees), degrees) == pytest.approx(0.05 / 24)
    # 5 seeds, sides that share nothing: the difference of means has a standard error of sqrt(2 / 5) deviations
    assert power(2.5 / math.sqrt(2 / 5), 4, 0.05) >= 0.85


def world_names() -> list[str]:
    return ["3 seeds", "5 seeds, spreads 1 : 3", "3 seeds, correlated 0.7", "3 x 3 of pretraining and finetuning",
            "5 x 5 of pretraining and finetuning", "5 seeds, 300 examples"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", world_names())
def test_tables_without_a_difference_hold_few_verdicts(simulation: ModuleType, name: str) -> None:
    found = simulation.simulate(simulation.WORLDS[name], 200, seed=1)
    assert found.false_tables <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)
    assert 0.93 <= found.coverage <= 0.985
