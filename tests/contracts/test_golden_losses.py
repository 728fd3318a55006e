"""Training is what it was: ten steps of every objective give the losses that are written down."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden_losses import STEPS, golden_losses, written
from support.objective_table import NAMES


def test_every_objective_is_written_down() -> None:
    assert sorted(written()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_written_down(tmp_path: Path, name: str) -> None:
    expected, found = written()[name], golden_losses(name, tmp_path)
    assert found.keys() == expected.keys()
    for kind, losses in found.items():
        assert len(losses) == STEPS
        if kind.endswith("_accuracy"):  # a count: one draw otherwise on another CPU is a step of it
            assert losses == pytest.approx(expected[kind], abs=0.05), kind
        else:
            assert losses == pytest.approx(expected[kind], rel=2e-3, abs=1e-3), kind
