"""Sweeps: a run of its own name for each point, failures listed at the end, a table after."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from lmtransfer.config.sweep_names import in_sweep
from lmtransfer.errors import ConfigError, DataError, Interrupted
from lmtransfer.launch import run_sweep


def test_each_point_has_its_own_name_made_of_what_is_swept(lmtransfer: Any, toy: Any) -> None:
    result = lmtransfer("toy", "-m", "seed=1,2", "train.steps=3,4", "model=large", "name=x", "text=a, b")
    assert (result.code, result.err) == (0, "")
    names = [f"x/seed={seed},train.steps={steps}" for seed in (1, 2) for steps in (3, 4)]
    assert [cfg["run_name"] for cfg in toy.configs] == names
    assert [cfg["train"] for cfg in toy.configs[:2]] == [{"steps": 3, "seconds": None}, {"steps": 4, "seconds": None}]
    assert {cfg["text"] for cfg in toy.configs} == {"a, b"}
    assert toy.swept == [[Path("runs") / name for name in names]]
    assert "4: seed=2,train.steps=4" in result.out


@pytest.mark.slow
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
    assert toy.failed == [["seed=1", "seed=2"]]
    heading, *failed = result.err.splitlines()[-3:]
    assert heading.startswith("lmtransfer: 2 of 4 ")
    assert failed == ["  seed=1: no such corpus", "  seed=2: ZeroDivisionError: a bug"]
    assert "lmtransfer: ZeroDivisionError: a bug. " in result.err
    assert "LMTRANSFER_TRACEBACK=1" in result.err
    assert "Traceback" not in result.err


def test_each_point_gives_its_score_to_the_sweeper(lmtransfer: Any, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {0: {"metrics": {"accuracy": 0.5}, "mean": 0.7}, 1: {"metrics": {"loss": 3.5, "mlm": 4.0}}}

    def finish(cfg: Any) -> None:
        if cfg.seed == 3:
            raise DataError("no such corpus")
        if cfg.seed in results:
            folder = Path(f"runs/toy/seed={cfg.seed}")
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps({"format": 1, **results[cfg.seed]}))

    scores: list[float] = []
    perform = run_sweep._perform_or_note

    def noted(*given: Any) -> float:
        scores.append(perform(*given))
        return scores[-1]

    monkeypatch.setattr(run_sweep, "_perform_or_note", noted)
    toy.behave = finish
    assert lmtransfer("toy", "-m", "seed=0,1,2,3").code == 1
    assert scores[:2] == [0.7, 3.5]
    assert math.isnan(scores[2])
    assert math.isnan(scores[3])


def test_an_interruption_stops_the_whole_sweep(lmtransfer: Any, toy: Any) -> None:
    def interrupt(cfg: Any) -> None:
        if cfg.seed == 2:
            raise Interrupted("saved")

    toy.behave = interrupt
    result = lmtransfer("toy", "-m", "seed=1,2,3")
    assert not in_sweep()
    assert result.code == 75
    assert [cfg["seed"] for cfg in toy.configs] == [1, 2]
    assert "sweep was interrupted" in result.err
    assert toy.swept == [[Path("runs/toy/seed=1")]]


@pytest.mark.slow
def test_a_sweep_can_be_written_in_a_config(lmtransfer: Any, toy: Any) -> None:
    folder = toy.conf / "sweep"
    folder.mkdir()
    (folder / "seeds.yaml").write_text(
        "# @package _global_\n# Two seeds\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 5,6\n"
    )
    assert lmtransfer("toy", "+sweep=seeds", "train.steps=1").code == 0
    assert [cfg["run_name"] for cfg in toy.configs] == ["toy/seed=5", "toy/seed=6"]
    assert "sweep: 4 of 4 finished" in lmtransfer("toy", "-m", "+sweep=seeds", "train.steps=1,2").out


def test_lines_at_the_start_and_the_end_of_each_point_count_them(lmtransfer: Any, toy: Any) -> None:
    def fail(cfg: Any) -> None:
        if cfg.seed == 2:
            raise DataError("no such corpus")

    toy.behave = fail
    said = lmtransfer("toy", "-m", "seed=1,2", "model=small,large").out
    ended = re.findall(r"^sweep: (.*)$", said, flags=re.MULTILINE)
    assert [line.partition(", about")[0] for line in ended] == [
        "1 of 4 finished",
        "2 of 4 finished",
        "2 of 4 finished, 1 failed",
        "2 of 4 finished, 2 failed",
    ]
    begun = re.findall(r"^sweep, run (\d): (\S+) \((.*)\)$", said, flags=re.MULTILINE)
    assert [number for number, _, _ in begun] == ["1", "2", "3", "4"]
    assert begun[0] == ("1", "model=small,seed=1", "0 of 4 finished")
    assert begun[3][2].startswith("2 of 4 finished, 1 failed")


def test_a_terminal_shows_all_points_after_each(lmtransfer: Any, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    def fail(cfg: Any) -> None:
        if cfg.seed == 1:
            raise DataError("no such corpus")

    toy.behave = fail
    lines = [line.split() for line in lmtransfer("toy", "-m", "seed=0,1,2").out.splitlines()]
    states = [(line[0], line[1]) for line in lines if line and line[0].startswith("seed=")]
    assert states == [
        *(("seed=0", "finished"), ("seed=1", "waiting"), ("seed=2", "waiting")),
        *(("seed=0", "finished"), ("seed=1", "failed"), ("seed=2", "waiting")),
        *(("seed=0", "finished"), ("seed=1", "failed"), ("seed=2", "finished")),
    ]


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("hydra/launcher=joblob", ("joblib", "basic")),
        ("hydra.launcher.n_jobs=2", ("hydra.launcher.n_jobs", "hydra/launcher=joblib")),
        ("hydra.sweep.dir=here", ("hydra.sweep.dir", "output_root")),
        ("hydra/launcher=ray", ("hydra/launcher=ray", "pip install hydra-ray-launcher\n")),
    ],
)
def test_a_wrong_launcher_or_setting_of_it_is_one_message(
    word: str, named: tuple[str, ...], lmtransfer: Any, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Plugins.instance()  # installed launchers are registered
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], "ray.yaml", raising=False)
    result = lmtransfer("toy", "-m", "seed=1,2", word)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert [name for name in named if name not in result.err] == []
    assert toy.configs == []


@pytest.mark.skipif(shutil.which("srun") is not None, reason="this machine has Slurm")
def test_slurm_that_is_not_there_is_one_message_and_leaves_nothing(lmtransfer: Any, toy: Any) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="hydra-submitit-launcher is not installed")
    result = lmtransfer("toy", "-m", "seed=1,2", "hydra/launcher=submitit_slurm")
    assert result.code == 2
    assert result.err.startswith("lmtransfer: hydra/launcher=submitit_slurm: ")
    assert "srun" in result.err
    assert result.err.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["seed=1,x", "train.steps=3,4"], ["seed=x train.steps=3 and 1 more: seed: 'x'"]),
        (["seed=1,2", "train.steps=x"], ["lmtransfer: train.steps: 'x'"]),
    ],
)
def test_every_point_is_checked_before_the_first_one_starts(
    words: list[str], named: list[str], lmtransfer: Any, toy: Any
) -> None:
    def check(cfg: Any) -> None:
        values = {"seed": cfg.seed, "train.steps": cfg.train.steps, "model.dim": cfg.model.dim}
        if problems := [f"{key}: {value!r}" for key, value in values.items() if isinstance(value, str)]:
            raise ConfigError(problems)

    toy.check = check
    result = lmtransfer("toy", "-m", *words)
    assert result.code == 2
    assert [name for name in named if name not in result.err] == []
    assert toy.configs == []
