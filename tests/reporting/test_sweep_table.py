"""The tables at the end of a sweep: a row for each point, also for those that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.runs import pretraining, transfer

from lmtransfer.reporting.results import print_points, sweep_table
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import make_sweep


def test_a_point_that_failed_has_its_values_and_no_score(tmp_path: Path) -> None:
    for value in (0.15, 0.4):
        pretraining(tmp_path / "pretrain" / "masks" / f"objective.mask_prob={value},seed=1", mask_prob=value)
    sweep = make_sweep("masks", make_entries(collect(tmp_path)))
    assert sweep is not None
    found = sweep_table(sweep, failed=["objective.mask_prob=0.8,seed=1", "other=1"]).rows
    assert [row[0] for row in found] == ["0.15", "0.4", "0.8", "other=1"]
    assert ["failed" in row for row in found] == [False, False, True, True]
    assert len(sweep_table(sweep).rows) == 2


@pytest.mark.parametrize("names", [("seed=1", "seed=2"), ("train.steps=1", "train.steps=2")])
def test_pretrain_shows_points_that_failed(
    names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pretrain" / "x"
    print_points("pretrain", [pretraining(folder / names[0], final=4.0), pretraining(folder / names[1])], ["lost=9"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[:1] == ["lost=9"]] == [["lost=9", "failed"]]


def test_finetune_shows_points_that_failed_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "finetune" / "x"
    runs = []
    for row, scores in enumerate([(0.7, 0.8), (0.8, 0.9)]):
        run = transfer(folder / f"lr={row}", scores)
        text = (run / "result.json").read_text()
        (run / "result.json").write_text(text.replace('"mean"', '"deviation": 0.07, "mean"'))
        runs.append(run)
    print_points("finetune", runs, ["lr=3"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines if line and line[0].startswith("lr=")] == [
        ["lr=1", "85.0"],
        ["lr=0", "75.0"],
        ["lr=3", "failed"],
    ]
