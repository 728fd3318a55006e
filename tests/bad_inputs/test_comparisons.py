"""Bad input of ``compare``: paths that are no runs, runs of several kinds, predictions that are damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.bad_input import Answer, Case, check


def run(folder: str, task: str = "sst2", **more: Any) -> dict[str, bytes]:
    """The files of a finished run."""
    result = {"command": "finetune", "task": task, "split": "dev", "main_metric": "accuracy", "seed": 0,
              "metrics": {"accuracy": 0.5}, **more}  # fmt: skip
    return {
        f"{folder}/config.yaml": f"init: runs/pretrain/base\ntask: {{name: {task}}}\n".encode(),
        f"{folder}/result.json": json.dumps({"format": 1, **result}).encode(),
    }


TWO = run("made/a") | run("made/b", seed=1)
CASES = {
    "none": Case(("compare",), ("runs",)),
    "one": Case(("compare", "made/a"), ("runs: 1 ",), TWO),
    "the same twice": Case(("compare", "made/a", "made/../made/a"), ("runs: ", "made/a", "made/../made/a"), TWO),
    "nowhere": Case(("compare", "made/a", "made/c"), ("runs=made/c: ",), TWO),
    "no run": Case(("compare", "made/a", "texts"), ("runs=texts: ", "result.json"), TWO),
    "pretraining": Case(
        ("compare", "made/a", "runs/pretrain/base"),
        ("runs: base ", "(sst2, dev)"),
        TWO,
    ),
    "not finished": Case(
        ("compare", "made/a", "made/c"),
        ("runs: ", "made/c"),
        TWO | {"made/c/config.yaml": b"init: x\n"},
    ),
    "several tasks": Case(
        ("compare", "made/a", "many"),
        ("many", "2 kinds", "sst2, dev", "cola, dev"),
        TWO | run("many/a") | run("many/b", "cola"),
    ),
    "unknown key": Case(("compare", "made/a", "made/b", "split=dev"), ("split=dev: ",), TWO),
    "no place": Case(("compare", "made/a", "made/b", "to=t.tsv"), ("to=t.tsv: ",), TWO),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_compared(name: str, world: Path, answer: Answer) -> None:
    check(CASES[name], world, answer)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PK\x05\x06", b"PAR1" + bytes(18) + b"PAR1"], ids=["empty", "cut", "a zip", "zeros"]
)
def test_damaged_predictions_are_told_of_and_left_out(content: bytes, world: Path, answer: Answer) -> None:
    for name, data in (TWO | {"made/a/predictions/dev.parquet": content}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
    status, said = answer("compare", "made/a", "made/b", "to=page")
    assert status == 0, said
    assert "dev.parquet" in said
    assert re.search(r"\ba and b\b.*\bpredictions\b", said)
    assert re.search(r"\ba and b\b.*\bone seed\b", said)
    assert answer("report", "made", "figures=false")[0] == 0
