"""Sweeps: a run of its own name for each point, failures listed at the end, a table after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lmtransfer.config.sweep import in_sweep
from lmtransfer.errors import DataError, Interrupted


def test_each_point_has_its_own_name_made_of_what_is_swept(lmtransfer: Any, toy: Any) -> None:
    result = lmtransfer("toy", "-m", "seed=1,2", "train.steps=3,4", "model=large", "name=x", "text=a, b")
    assert (result.code, result.err) == (0, "")
    names = [f"x/seed={seed},train.steps={steps}" for seed in (1, 2) for steps in (3, 4)]
    assert [cfg["run_name"] for cfg in toy.configs] == names
    assert [cfg["train"] for cfg in toy.configs[:2]] == [{"steps": 3, "seconds": None}, {"steps": 4, "seconds": None}]
    assert {cfg["text"] for cfg in toy.configs} == {"a, b"}
    assert toy.swept == [[Path("runs") / name for name in names]]
    assert "sweep, run 4: seed=2,train.steps=4" in result.out


def test_groups_paths_and_names_can_be_swept(lmtransfer: Any, toy: Any) -> None:
    lmtransfer("toy", "-m", "model=small,large")
    lmtransfer("toy", "-m", "init=runs/a/seed=1,runs/a-seed=1")
    lmtransfer("toy", "-m", "name=a,b")
    names = [cfg["run_name"] for cfg in toy.configs]
    assert names[:2] == ["toy/model=small", "toy/model=large"]
    assert all(name.startswith("toy/init=runs-a-seed=1-") for name in names[2:4])
    assert names[2] != names[3]
    assert names[4:] == ["a", "b"]
    assert [cfg["init"] for cfg in toy.configs[2:4]] == ["runs/a/seed=1", "runs/a-seed=1"]


def test_a_command_knows_whether_it_is_in_a_sweep(lmtransfer: Any, toy: Any) -> None:
    seen = []
    toy.behave = lambda cfg: seen.append(in_sweep())
    lmtransfer("toy", "-m", "seed=1,2")
    lmtransfer("toy")
    assert seen == [True, True, False]
    assert not in_sweep()


def test_failed_points_do_not_stop_the_others_and_are_listed(lmtransfer: Any, toy: Any) -> None:
    def fail(cfg: Any) -> None:
        if cfg.seed == 1:
            raise DataError("no such corpus\nat all")
        if cfg.seed == 2:
            raise ZeroDivisionError("a bug")

    toy.behave = fail
    result = lmtransfer("toy", "-m", "seed=0,1,2,3")
    assert result.code == 1
    assert [cfg["seed"] for cfg in toy.configs] == [0, 1, 2, 3]
    assert toy.swept == [[Path("runs/toy/seed=0"), Path("runs/toy/seed=3")]]
    assert result.err.endswith(
        "lmtransfer: 2 of 4 runs of the sweep failed:\n  seed=1: no such corpus\n  seed=2: ZeroDivisionError: a bug\n"
    )
    assert "lmtransfer: ZeroDivisionError: a bug. This is a bug of lmtransfer; to see where" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("error", [Interrupted("saved"), KeyboardInterrupt()])
def test_an_interruption_stops_the_whole_sweep(error: BaseException, lmtransfer: Any, toy: Any) -> None:
    def interrupt(cfg: Any) -> None:
        if cfg.seed == 2:
            raise error

    toy.behave = interrupt
    result = lmtransfer("toy", "-m", "seed=1,2,3")
    assert result.code == 75
    assert [cfg["seed"] for cfg in toy.configs] == [1, 2]
    assert "the sweep was interrupted; the same command goes on with it" in result.err
    assert toy.swept == []


def test_a_sweep_can_be_written_in_a_config(lmtransfer: Any, toy: Any) -> None:
    folder = toy.conf / "sweep"
    folder.mkdir()
    (folder / "seeds.yaml").write_text(
        "# @package _global_\n# Two seeds\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 5,6\n"
    )
    assert lmtransfer("toy", "+sweep=seeds", "train.steps=1").code == 0
    assert [cfg["run_name"] for cfg in toy.configs] == ["toy/seed=5", "toy/seed=6"]
