"""Sides of a comparison from what results say, whole, of earlier versions, or damaged."""

from __future__ import annotations

from typing import Any

import pytest

from lmtransfer.reporting.runs.scores import difference_in, read_scores
from lmtransfer.verdicts.compare import compare_conditions


def seeds(values: list[float], **more: Any) -> list[dict[str, Any]]:
    return [{"seed": seed, "metrics": {"accuracy": value}, **more} for seed, value in enumerate(values)]


def test_seeds_and_pretrainings_are_told_apart() -> None:
    node = {"seeds": seeds([0.7, 0.72], pretraining_seed=0) + seeds([0.6, 0.65], pretraining_seed=1), "collapsed": 1}
    found = read_scores(node, "accuracy", pretraining="runs/pretrain/x")
    assert found is not None
    assert found.spread.values == (0.7, 0.72, 0.6, 0.65)
    assert [(one.seed, one.pretraining) for one in found.condition.scores] == [
        (0, "runs/pretrain/x/0"),
        (1, "runs/pretrain/x/0"),
        (0, "runs/pretrain/x/1"),
        (1, "runs/pretrain/x/1"),
    ]
    assert found.condition.collapsed == 1


@pytest.mark.parametrize(
    "node",
    [
        {"seeds": [0.7, 0.72, 0.74]},  # without their seeds
        {"seeds": [{"seed": 1, "accuracy": value} for value in (0.7, 0.72, 0.74)]},  # one seed thrice
        {"seeds": [{"seed": "x", "accuracy": value} for value in (0.7, 0.72, 0.74)]},
        {"mean": 0.72, "deviation": 0.02, "n": 3},
    ],
)
def test_scores_without_their_seeds_are_compared_unpaired(node: dict[str, Any]) -> None:
    found, control = read_scores(node, "accuracy"), read_scores({"seeds": seeds([0.6, 0.61, 0.63])}, "accuracy")
    assert found is not None
    assert control is not None
    assert found.spread.mean == pytest.approx(0.72)
    assert found.spread.deviation == pytest.approx(0.02)
    difference = compare_conditions(found.condition, control.condition)
    assert not difference.paired
    assert difference.standard_error == pytest.approx((0.02**2 / 3 + 0.0007 / 3 / 3) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("node", [None, {}, "x", [], {"mean": "x"}, {"seeds": ["x", None]}, {"metrics": {"f1": 0.5}}])
def test_what_has_no_score_has_no_arm(node: Any) -> None:
    assert read_scores(node, "accuracy") is None


def test_a_difference_of_an_earlier_version_is_worked_out_anew() -> None:
    result = {
        "main_metric": "accuracy",
        "seeds": seeds([0.7, 0.71, 0.73]),
        "control": {"seeds": seeds([0.6, 0.62, 0.61])},
    }
    result["difference"] = {"difference": 0.1, "standard_error": 0.01, "verdict": "better"}
    found = difference_in(result)
    assert found is not None
    assert (found.paired, found.num_seeds, found.scope) == (True, (3, 3), "this checkpoint")
    assert found.delta == pytest.approx(0.31 / 3)
    assert difference_in({**result, "difference": found.as_values()}) == found
    assert difference_in({"main_metric": "accuracy", "metrics": {"accuracy": 0.5}}) is None
    assert difference_in({}) is None
