"""A result in one line, as ``print`` shows it."""

from __future__ import annotations

from typing import Any

import pytest

from lmtransfer.runs.result import JointResult, RunResult

MEASURED: dict[str, Any] = {"command": "finetune", "task": "sst2", "split": "dev", "main_metric": "accuracy"}


def test_a_pretraining_shows_its_metrics() -> None:
    result = RunResult(command="pretrain", split="validation", metrics={"loss": 3.40126, "mlm_accuracy": 0.17822})
    assert str(result) == "pretrain, validation: loss 3.401, mlm_accuracy 0.1782"
    assert str(RunResult(command="pretrain")) == "pretrain: nothing was measured"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "sst2, dev: accuracy 0.7812"),
        ({"deviation": 0.0123, "n": 5}, "sst2, dev: accuracy 0.7812 \u00b1 0.012 over 5 seeds"),
        (
            {"control": {"mean": 0.6651}, "more": {"difference": {"difference": 0.1161, "verdict": "better"}}},
            "sst2, dev: accuracy 0.7812; not pretrained: 0.6651; difference: +0.1161 (better)",
        ),
        ({"control": True}, "sst2, dev: accuracy 0.7812"),
    ],
)
def test_a_task_shows_its_main_metric_and_the_control(changes: dict[str, Any], line: str) -> None:
    result = JointResult(**{**MEASURED, "mean": 0.7812, "median": 0.78, "n": 1, "collapsed": 0} | changes)
    assert str(result) == line
