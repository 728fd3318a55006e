"""A pretraining run reports the metrics of its best checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from support import tiny_runs
from support.tiny_runs import here, records, trained, without  # noqa: F401 (here is a fixture)

from lmtransfer.cli import main

EXACT = [*SHORT, "hardware=exact"]
#: Rates so high that the loss rises again.
RISING = ["optimizer=adamw", "optimizer.learning_rate=0.1", "schedule=constant", "train.steps=24", "train.eval_every=3"]


def _result(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return found


def test_the_metrics_are_those_of_the_best_checkpoint(text_world: Path) -> None:
    assert main(["pretrain", *TINY, *TEXT, *EXACT, *RISING, "objective=mlm", "name=a"]) == 0
    lines = [json.loads(line) for line in Path("runs/pretrain/a/metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["validation/loss"] for line in lines if "validation/loss" in line}
    found = _result("runs/pretrain/a")
    assert found["metrics"]["loss"] == min(losses.values()) < losses[24]
    assert losses[found["checkpoint_step"]] == min(losses.values())
    assert (found["checkpoint"], found["steps"]) == ("best", 24)
    assert main(["evaluate", "run=runs/pretrain/a", "eval_tokens=null", "hardware=exact", "name=e"]) == 0
    assert _result("runs/evaluate/e")["metrics"]["loss"] == pytest.approx(found["metrics"]["loss"], rel=1e-6)
    read = [json.loads(Path(f"runs/{run}/versions.json").read_text())["data"] for run in ("pretrain/a", "evaluate/e")]
    assert read[0] == read[1]  # so compare knows that both were measured on the same tokens
    assert main(["compare", "runs/pretrain/a", "runs/evaluate/e", "to=page"]) == 0
    (said,) = [
        line for line in json.loads(next(Path("page").glob("*.json")).read_text())["missing"] if "eval_tokens" in line
    ]
    assert "eval_tokens (100000 " in said


def test_without_validation_the_last_checkpoint_is_named() -> None:
    run = trained(
        *without(tiny_runs.TINY, "train.steps", "corpus.val"), "train.steps=2", "corpus.validation_fraction=0"
    )
    found = _result(f"runs/pretrain/{run}")
    assert (found["checkpoint"], found["checkpoint_step"], found["metrics"]) == ("last", 2, {})


@pytest.mark.parametrize("optimizer", ["adagrad", "lamb", "muon"])
def test_other_optimizers_train(optimizer: str) -> None:
    words = [*without(tiny_runs.TINY, "train.steps"), "train.steps=3", "schedule=constant", f"optimizer={optimizer}"]
    lines = records(trained(*words))
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert (lines[-1]["learning_rate"] > 0, lines[-1]["skipped"]) == (True, 0)
