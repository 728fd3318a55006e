"""The plan of a sweep, the remaining time, the folder of its outcomes, and launchers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from fakes.runs import pretraining

from lmtransfer.config.composing import compose_files
from lmtransfer.errors import Interrupted, MachineError
from lmtransfer.launch import run_sweep
from lmtransfer.launch.sweep_points import (
    SweepPlan,
    SweepPoint,
    launcher_error,
    plan_of,
    points_table,
    progress_line,
    read_points,
    seconds_left,
    shared_folder,
    watch_points,
)
from lmtransfer.system import cores

SUBMITIT = find_spec("hydra_plugins") is not None and find_spec("hydra_plugins.hydra_submitit_launcher") is not None
RAY = find_spec("hydra_plugins") is not None and find_spec("hydra_plugins.hydra_ray_launcher") is not None
JOBLIB = find_spec("hydra_plugins") is not None and find_spec("hydra_plugins.hydra_joblib_launcher") is not None


@pytest.mark.parametrize(
    ("given", "total", "labels"),
    [
        (["seed=1,2"], 2, ("seed=1", "seed=2")),
        (["seed=1,2", "model=bert_tiny,bert_mini"], 4, None),
        (["seed=range(0,5)"], 5, None),
        (["seed=1,2", "seed=1,2,3"], 3, None),
        (["seed=choice(1,2,3)"], 3, ("seed=1", "seed=2", "seed=3")),
        (["train.steps=5"], 1, None),
        (["seed=range(0,1000)"], 1000, ()),
        (["model=glob(bert_*)"], None, ()),
        (["no.such.key=1,2"], None, ()),
    ],
)
def test_the_number_of_points_is_the_product_of_the_values(
    given: list[str], total: int | None, labels: tuple[str, ...] | None
) -> None:
    plan = plan_of("pretrain", given)
    assert (plan.launcher, plan.workers, plan.total) == ("basic", 1, total)
    assert labels is None or plan.labels == labels


@pytest.mark.skipif(not JOBLIB, reason="hydra-joblib-launcher is not installed")
def test_the_workers_of_joblib_are_its_jobs() -> None:
    words = ["seed=1,2", "hydra/launcher=joblib"]
    plan = plan_of("pretrain", [*words, "hydra.launcher.n_jobs=2"])
    assert plan == SweepPlan("joblib", 2, ("seed=1", "seed=2"), workers=2, output_root="runs")
    assert (plan.is_parallel, plan.is_local) == (True, True)
    assert plan_of("pretrain", words).workers == min(2, len(os.sched_getaffinity(0)))
    assert plan_of("pretrain", [*words, "hydra.launcher.n_jobs=9"]).workers == 2


@pytest.mark.skipif(not SUBMITIT, reason="hydra-submitit-launcher is not installed")
def test_slurm_composes_with_our_settings(tmp_path: Path) -> None:
    words = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "hydra.launcher.timeout_min=90"]
    plan = plan_of("pretrain", ["seed=1,2", f"output_root={tmp_path}/runs", *words])
    assert (plan.launcher, plan.total, plan.workers, plan.is_local) == ("submitit_slurm", 2, None, False)
    with shared_folder(plan) as folder:
        settings = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.job.name=lmtransfer"]
        cfg = compose_files("pretrain", [*settings, *words, "seed=1", f"hydra.sweep.dir={folder}"])
        launcher = cfg.hydra.launcher
        assert (launcher.partition, launcher.timeout_min, launcher.name) == ("gpu", 90, "lmtransfer")
        assert launcher._target_.endswith(".SlurmLauncher")
        assert Path(launcher.submitit_folder).is_relative_to(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(not RAY, reason="hydra-ray-launcher is not installed")
def test_ray_composes_with_our_settings(tmp_path: Path) -> None:
    words = ["hydra/launcher=ray", "hydra.launcher.ray.init.num_cpus=2"]
    plan = plan_of("pretrain", ["seed=1,2", f"output_root={tmp_path}", *words])
    assert (plan.launcher, plan.total, plan.workers, plan.is_local) == ("ray", 2, None, False)
    cfg = compose_files("pretrain", [*words, "seed=1", f"hydra.sweep.dir={tmp_path}"])
    assert cfg.hydra.launcher.ray.init.num_cpus == 2


def points(*seconds: float | None, failed: int = 0) -> list[SweepPoint]:
    found = [
        SweepPoint(number, f"seed={number}", seconds=measure_seconds) for number, measure_seconds in enumerate(seconds)
    ]
    return found + [SweepPoint(len(found) + row, "x", error="no luck", seconds=1e6) for row in range(failed)]


@pytest.mark.parametrize(
    ("plan", "ended", "line"),
    [
        (SweepPlan(total=12), points(30.0, 50.0, 40.0, failed=1), "3 of 12 finished, 1 failed, about 5 min left"),
        (SweepPlan("joblib", 12, workers=4), points(30.0, 50.0), "2 of 12 finished, about 100 s left"),
        (SweepPlan("joblib", 3, workers=4), points(30.0, 50.0), "2 of 3 finished, about 40 s left"),
        (SweepPlan(total=4), points(None, 7200.0), "2 of 4 finished, about 4.0 h left"),
        (SweepPlan(total=4), points(None, None), "2 of 4 finished"),
        (SweepPlan(total=4), points(failed=2), "0 of 4 finished, 2 failed"),
        (SweepPlan(total=2), points(1.0, 1.0), "2 of 2 finished"),
        (SweepPlan(total=None), points(1.0, failed=1), "1 finished, 1 failed"),
        (SweepPlan("submitit_slurm", 4, workers=None), points(9.0), "1 of 4 finished"),
    ],
)
def test_the_line_counts_and_estimates(plan: SweepPlan, ended: list[SweepPoint], line: str) -> None:
    assert progress_line(plan, ended) == line


def test_nothing_is_estimated_from_failed_points() -> None:
    assert seconds_left(SweepPlan(total=5), points(failed=1)) is None
    assert seconds_left(SweepPlan(total=5), points(10.0, failed=1)) == 30.0


def test_the_table_has_a_row_for_each_point_with_its_score(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "pretrain" / "x", final=4.5)
    plan = SweepPlan(total=3, labels=("seed=1", "seed=2", "seed=3"))
    ended = [SweepPoint(0, "seed=1", run_dir=run, seconds=12.0), SweepPoint(1, "seed=2", error="no luck", seconds=3.0)]
    rows = points_table(plan, ended).rows
    assert rows[0][:2] == ["seed=1", "finished"]
    assert (rows[0][2].split()[0], rows[0][3]) == ("loss", "12 s")
    assert rows[1:] == [["seed=2", "failed", "", "3.0 s"], ["seed=3", "waiting", "", ""]]


def test_a_run_that_was_finished_before_took_no_time(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    now = time.time()
    old, new, none = SweepPoint(0, "a", tmp_path), SweepPoint(1, "b", tmp_path), SweepPoint(2, "c")
    old.measure_seconds(now + 5)
    new.measure_seconds(now - 5)
    none.measure_seconds(now - 5)
    assert old.seconds is None
    assert new.seconds == pytest.approx(5, abs=4)
    assert none.seconds == pytest.approx(5, abs=4)


def test_outcomes_of_a_cluster_are_below_the_root_of_the_runs_and_stay_with_the_logs_of_a_failure(
    tmp_path: Path,
) -> None:
    plan = SweepPlan("submitit_slurm", 2, workers=None, output_root=str(tmp_path / "runs"))

    def fail(*jobs: str) -> Path:
        with suppress(ZeroDivisionError), shared_folder(plan) as folder:
            for job in jobs:
                (folder / ".submitit" / job).mkdir(parents=True)
            _ = 1 / 0
        return folder

    assert not fail().exists()
    assert not (tmp_path / "runs").exists()
    folder = fail("17")
    assert (folder.parent, folder.is_dir()) == (tmp_path / "runs", True)
    failure = launcher_error(plan, RuntimeError("Job 17 failed. And more"), folder)
    assert isinstance(failure, MachineError)
    assert all(text in str(failure) for text in ("submitit_slurm", "Job 17 failed", str(folder)))
    assert "more" not in str(failure)
    assert isinstance(launcher_error(plan, KeyboardInterrupt(), folder), Interrupted)


def test_a_point_of_another_process_is_counted_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watch_points(SweepPlan("submitit_local", 2, workers=None), tmp_path, every=0.01):
        SweepPoint(0, "seed=1").write(tmp_path)
    assert capsys.readouterr().out.splitlines() == ["sweep: 0 of 2 finished", "sweep: 1 of 2 finished"]


def test_outcomes_of_an_interrupted_sweep_are_written_nowhere(tmp_path: Path) -> None:
    SweepPoint(0, "seed=1").write(tmp_path / "gone")
    run_sweep.stop(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
    assert read_points(tmp_path / "gone") == []


def test_processes_beside_each_other_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "physical_cores", lambda: 8)
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    with cores.share_cores(3):
        assert cores.usable_cores() == 2
    with cores.share_cores(20):
        assert cores.usable_cores() == 1
    assert cores.usable_cores() == 8


def test_points_are_read_back_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    points = [
        SweepPoint(number, f"seed={number}", Path(f"runs/{number}") if number % 2 else None) for number in range(11)
    ]
    points[4].error = "no\nluck"
    points[5].seconds = 1.5
    for point in reversed(points):
        point.write(tmp_path)
    assert read_points(tmp_path) == points
