from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.runs import write_run

from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.reporting.runs.scores import majority, read_condition
from lmtransfer.verdicts.verdict import compare_conditions


def seeds(values: list[float], **more: Any) -> list[dict[str, Any]]:
    return [{"seed": seed, "metrics": {"accuracy": value}} | more for seed, value in enumerate(values)]


def test_seeds_and_pretrainings_are_told_apart() -> None:
    node = {"seeds": seeds([0.7, 0.72], pretraining_seed=0) + seeds([0.6, 0.65], pretraining_seed=1), "collapsed": 1}
    found = read_condition(node, "accuracy", pretraining="runs/pretrain/x")
    assert found is not None
    assert found.spread.values == (0.7, 0.72, 0.6, 0.65)
    assert [(one.seed, one.pretraining) for one in found.scores] == [
        (0, "runs/pretrain/x/0"),
        (1, "runs/pretrain/x/0"),
        (0, "runs/pretrain/x/1"),
        (1, "runs/pretrain/x/1"),
    ]
    assert found.collapsed == 1


@pytest.mark.parametrize("seed", [None, 1])  # not known, or the same three times
def test_scores_without_their_seeds_are_compared_unpaired(seed: int | None) -> None:
    found = read_condition({"seeds": seeds([0.7, 0.72, 0.74], seed=seed)}, "accuracy")
    control = read_condition({"seeds": seeds([0.6, 0.61, 0.63])}, "accuracy")
    assert found is not None
    assert control is not None
    difference = compare_conditions(found, control)
    assert not difference.paired
    assert difference.standard_error == pytest.approx((0.02**2 / 3 + 0.0007 / 3 / 3) ** 0.5, rel=1e-6)


def test_a_result_without_the_metric_has_no_score() -> None:
    assert read_condition({}, "accuracy") is None
    assert read_condition({"metrics": {"f1": 0.5}}, "accuracy") is None
    assert majority({"majority": {"matthews": 0.0}}, "matthews") == 0.0


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("metrics.accuracy", "high"),
        ("seeds[0].metrics.accuracy", True),
        ("control.metrics", 3),
        ("majority", ["x"]),
        ("calibration.plain", None),
        ("layer_weights.weights[0]", "x"),
    ],
)
def test_foreign_values_in_a_result_are_named(tmp_path, entry: str, value: Any) -> None:
    result: Any = value
    for part in reversed(entry.replace("[0]", ".0").split(".")):
        result = [result] if part == "0" else {part: result}
    run = read_run(write_run(tmp_path / "odd", result=json.loads(json.dumps(result))))
    assert (run.state, dict(run.result)) == ("torn", {})
    assert "result.json" in run.problems[0]
    assert entry.partition("[")[0] in run.problems[0]
