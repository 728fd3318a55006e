"""Sweeps: a run of its own name for each point, failures listed at the end, a table after."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lmtransfer.config.sweep_names import in_sweep
from lmtransfer.errors import ConfigError, DataError, Interrupted


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
    for run in ("runs/a/seed=1", "runs/a-seed=1"):
        Path(run).mkdir(parents=True)
        Path(run, "config.yaml").touch()
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


def test_values_come_from_ranges_choices_and_the_files_of_a_group(lmtransfer: Any, toy: Any) -> None:
    lmtransfer("toy", "-m", "seed=range(1,4)")
    lmtransfer("toy", "-m", "train.steps=choice(5,7)")
    lmtransfer("toy", "-m", "model=glob(*,exclude=sm*)")
    lmtransfer("toy", "-m", "+model@twin=small,large", "model=large", "+model.extra=1,2", "++seed=4", "~experiment")
    names = [cfg["run_name"] for cfg in toy.configs]
    assert names[:6] == [*(f"toy/seed={seed}" for seed in (1, 2, 3)), "toy/train.steps=5", "toy/train.steps=7"] + [
        "toy/model=large"
    ]
    assert names[6:] == [f"toy/+model.extra={n},+model@twin={name}" for name in ("small", "large") for n in (1, 2)]
    assert [
        (cfg["twin"]["dim"], cfg["model"]["dim"], cfg["model"]["extra"], cfg["seed"]) for cfg in toy.configs[6:]
    ] == [(dim, 64, n, 4) for dim in (8, 64) for n in (1, 2)]


def test_the_command_line_takes_precedence_over_the_values_of_a_recipe(lmtransfer: Any, toy: Any) -> None:
    (toy.conf / "sweep").mkdir()
    params = "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '5,6', train.steps: '1,2'}}}\n"
    (toy.conf / "sweep/both.yaml").write_text(f"# @package _global_\n# A sweep\n{params}")
    assert lmtransfer("toy", "+sweep=both", "seed=9").code == 0
    assert lmtransfer("toy", "+sweep=both", "seed=7,8", "train.steps=3").code == 0
    assert lmtransfer("toy", "+sweep=both", "hydra.mode=RUN").code == 0
    names = [cfg["run_name"] for cfg in toy.configs]
    assert names == ["toy/train.steps=1", "toy/train.steps=2", "toy/seed=7", "toy/seed=8", "toy"]
    assert [cfg["seed"] for cfg in toy.configs] == [9, 9, 7, 8, 0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["hydra/launcher=joblib"], ("hydra/launcher=joblib", "jobs=4", "cluster=slurm")),
        (["hydra.launcher.n_jobs=2"], ("hydra.launcher.n_jobs", "jobs=4")),
        (["hydra/sweeper=optuna"], ("hydra/sweeper=optuna", "jobs=4")),
        (["hydra.sweeper.max_batch_size=2"], ("hydra.sweeper.max_batch_size", "jobs=4")),
        (["hydra.sweep.dir=here"], ("hydra.sweep.dir", "hydra.sweeper.params")),
        (["train.steps=interval(1,9)"], ("train.steps=interval(1,9)", "train.steps=range(1,3)")),
        (["model=glob(z*)"], ("model=glob(z*)",)),
        (["jobs=1,2"], ("jobs=1,2",)),
        (["jobs=x"], ("jobs: 'x'",)),
        (["cluster=local", "cluster.time=3"], ("cluster.time=3", "executor")),
    ],
)
def test_what_a_sweep_cannot_do_is_one_message(
    words: list[str], named: tuple[str, ...], lmtransfer: Any, toy: Any
) -> None:
    (toy.conf / "cluster").mkdir()
    (toy.conf / "cluster/local.yaml").write_text("# This machine\nexecutor: local\ntimeout_min: 5\n")
    result = lmtransfer("toy", "-m", "seed=1,2", *words)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert [name for name in named if name not in result.err] == []
    assert toy.configs == []


@pytest.mark.parametrize(
    "words",
    [
        ("seed=3", "seed=1,2"),
        ("seed=1,2", "+seed=3"),
        ("seed=1,2", "seed=4,5"),
        ("seed=1,1"),
        ("name=a,a"),
        ("text=x", "init='a',a"),
        ("model=small,large,small"),
    ],
)
def test_no_two_points_share_a_name(words: tuple[str, ...], lmtransfer: Any, toy: Any) -> None:
    result = lmtransfer("toy", "-m", *((words,) if isinstance(words, str) else words))
    assert result.code == 2
    assert re.search("keep only one|give each value once", result.err)
    assert result.err.count("\n") == 1
    assert toy.configs == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["seed=1,x", "train.steps=3,4"], ["seed=x train.steps=3 and 1 more: seed: 'x'"]),
        (["seed=1,2", "train.steps=x"], ["lmtransfer: train.steps: 'x'"]),
        (["seed=1,7", "train.steps=3,4"], ["seed=7 train.steps=3 and 1 more: seed: 7 is too many"]),
        (["seed=1,2", "train.steps=7"], ["lmtransfer: train.steps: 7 is too many"]),
    ],
)
def test_every_point_is_checked_before_the_first_one_starts(
    words: list[str], named: list[str], lmtransfer: Any, toy: Any
) -> None:
    def check(settings: Any) -> None:
        values = {"seed": settings.seed, "train.steps": settings.train.steps}
        if problems := [f"{key}: {value} is too many" for key, value in values.items() if value == 7]:
            raise ConfigError(problems)

    toy.check = check
    result = lmtransfer("toy", "-m", *words)
    assert result.code == 2
    assert [name for name in named if name not in result.err] == []
    assert toy.configs == []
