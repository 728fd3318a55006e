"""Trackers: services cannot disturb a run, and a resumed run continues its record."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.trackers import CALLS, FakeService, by_name
from fakes.training import toy_trainer
from support.refusals import refuses

from lmtransfer.config import paths
from lmtransfer.config.component import Node, component_problems
from lmtransfer.errors import ConfigError, Interrupted
from lmtransfer.launch import overrides
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import open_trackers
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.optim.schedules import Constant
from lmtransfer.training.trackers.base import Jsonl, TrackedRun, numbers_in
from lmtransfer.training.trackers.service_guard import ServiceGuard


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    FakeService.kept.clear()
    yield
    FakeService.kept.clear()


def run_of(folder: Path) -> TrackedRun:
    return TrackedRun(
        name="pretrain/toy", group="pretrain/toy", command="pretrain", folder=folder, output_root=folder, config={}
    )


def guarded(folder: Path, service: FakeService, *, name: str = "fake", said: list[str] | None = None) -> ServiceGuard:
    said = [] if said is None else said
    return ServiceGuard(service, name=name, run=run_of(folder), patience=0.5, say=said.append)


def test_nested_numbers_are_named_by_their_path_and_other_values_are_left_out() -> None:
    values = {"loss": 2, "parts": {"a": 0.5, "b": {"c": 1}}, "bad": math.nan, "flag": True, "text": "x", "none": None}
    assert numbers_in(values, prefix="result/") == {"result/loss": 2.0, "result/parts/a": 0.5, "result/parts/b/c": 1.0}


@pytest.mark.parametrize("call", CALLS)
def test_a_service_that_fails_stops_neither_the_run_nor_the_others(call: str, tmp_path: Path) -> None:
    said: list[str] = []
    faulty = guarded(tmp_path, FakeService(fails_in=call), name="faulty", said=said)
    sound = guarded(tmp_path, FakeService(), name="sound", said=said)
    for service in (faulty, sound):
        service.begin()
    toy_trainer(trackers=[Jsonl(folder=tmp_path), faulty, sound], budget=Budget(steps=6)).train()
    for service in (faulty, sound):
        service.finish("finished", {"result/loss": 1.0})
    assert [record["step"] for record in Jsonl(folder=tmp_path).records(99)] == [1, 2, 3, 4, 5, 6]
    assert sound.service.mine.steps == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]
    assert sound.service.mine.result == {"result/loss": 1.0}  # type: ignore[attr-defined]
    (line,) = said
    assert "faulty" in line
    assert f"no room in {call}" in line
    assert "\n" not in line


@pytest.mark.parametrize("call", CALLS)
def test_a_service_that_does_not_answer_does_not_hold_the_run_up(call: str, tmp_path: Path) -> None:
    said: list[str] = []
    silent = guarded(tmp_path, FakeService(waits_in=call), said=said)
    start_time = time.monotonic()
    silent.begin()
    toy_trainer(trackers=[Jsonl(folder=tmp_path), silent], budget=Budget(steps=6)).train()
    silent.finish("finished", {})
    assert time.monotonic() - start_time < 10
    assert len(Jsonl(folder=tmp_path).records(99)) == 6
    (line,) = said
    assert "fake" in line
    assert "0.5" in line


def trained(folder: Path, service: FakeService, *, steps: int, said: list[str] | None = None) -> list[str]:
    """Train up to a step, resuming from the folder; checkpoints are saved every four steps."""
    said = [] if said is None else said
    tracker = guarded(folder, service, said=said)
    tracker.begin()
    trainer = toy_trainer(
        trackers=[Jsonl(folder=folder), tracker],
        checkpoints=Checkpoints(folder / "checkpoints"),
        budget=Budget(steps=steps),
        schedule=Constant(),
        save_every=4,
    )
    if (folder / "checkpoints").exists():
        trainer.resume()
    trainer.train()
    tracker.finish("finished", {})
    return said


@pytest.mark.parametrize("knows_steps", [False, True])
def test_a_resumed_run_continues_its_record_although_steps_were_cut_back(knows_steps: bool, tmp_path: Path) -> None:
    trained(tmp_path, FakeService(knows_steps=knows_steps), steps=4)
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "of step 4")
    trained(tmp_path, FakeService(knows_steps=knows_steps), steps=6)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "of step 4").rename(tmp_path / "checkpoints")
    said = trained(tmp_path, FakeService(knows_steps=knows_steps), steps=10)
    (kept,) = FakeService.kept.values()
    assert kept.steps == list(range(1, 11)), "each step once, and in order"
    assert [record["step"] for record in Jsonl(folder=tmp_path).records(99)] == list(range(1, 11))
    by_step = {record["step"]: record["loss"] for record in Jsonl(folder=tmp_path).records(99)}
    assert {step: row["loss"] for step, row in kept.rows} == by_step
    assert said == []


def test_what_a_service_missed_while_it_was_off_comes_from_the_file(tmp_path: Path) -> None:
    assert len(trained(tmp_path, FakeService(fails_in="log"), steps=6)) == 1
    (kept,) = FakeService.kept.values()
    assert kept.steps == []
    trained(tmp_path, FakeService(), steps=8)
    assert len(FakeService.kept) == 1
    assert kept.steps == list(range(1, 9))


def test_a_store_that_has_lost_the_record_gets_all_steps_in_a_new_one(tmp_path: Path) -> None:
    trained(tmp_path, FakeService(), steps=6)
    FakeService.kept.clear()
    trained(tmp_path, FakeService(), steps=8)
    (kept,) = FakeService.kept.values()
    assert kept.steps == list(range(1, 9))


def test_a_damaged_file_of_a_record_turns_only_its_tracker_off(tmp_path: Path) -> None:
    trained(tmp_path, FakeService(), steps=6)
    (tmp_path / "trackers/fake.json").write_text('{"id": ["x"]}')
    (line,) = trained(tmp_path, FakeService(), steps=8)
    assert "fake.json" in line
    assert len(Jsonl(folder=tmp_path).records(99)) == 8


def test_jsonl_is_cut_back_to_a_step_and_past_a_torn_line(tmp_path: Path) -> None:
    tracker = Jsonl(folder=tmp_path)
    tracker.rewind(5)
    for step in (2, 4, 6):
        tracker.log({"step": step, "loss": 1 / step})
    with tracker.path.open("a") as file:
        file.write('{"step": 8, "lo')
    tracker.rewind(4)
    assert [json.loads(line)["step"] for line in tracker.path.read_text().splitlines()] == [2, 4]


def test_a_last_line_without_its_end_is_not_trusted(tmp_path: Path) -> None:
    tracker = Jsonl(folder=tmp_path)
    tracker.path.write_text('{"step": 1}\n{"step": 2}')
    tracker.rewind(9)
    assert tracker.path.read_text() == '{"step": 1}\n'


def test_jsonl_is_json_even_where_numbers_are_not_finite(tmp_path: Path) -> None:
    tracker = Jsonl(folder=tmp_path)
    tracker.log({"step": 1, "loss": math.nan, "gradient_norm": math.inf, "learning_rate": 0.1})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads(tracker.path.read_text(), parse_constant=refuse)
    assert record == {"step": 1, "loss": None, "gradient_norm": None, "learning_rate": 0.1}


@pytest.fixture
def of_fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Node[Any]]:
    monkeypatch.setenv("LMTRANSFER_ALLOW", "fakes.trackers")
    return {
        "jsonl": Node({"_target_": "lmtransfer.training.trackers.base.Jsonl"}),
        "fake": Node({"_target_": "fakes.trackers.FakeService"}),
    }


def directory(path: Path, *, root: Path) -> RunDirectory:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"output_root": str(root), "seed": 3}))
    return RunDirectory(path)


@pytest.mark.parametrize(
    ("path", "name", "group"),
    [
        ("runs/pretrain/imdb", "pretrain/imdb", "pretrain/imdb"),
        ("runs/pretrain/imdb/seed-1", "pretrain/imdb/seed-1", "pretrain/imdb"),
        ("runs/probe/p/model.dim=8/control/seed-0", "probe/p/model.dim=8/control/seed-0", "probe/p"),
        ("runs/study/s/finetune/bert", "finetune/bert", "study/s"),
    ],
)
def test_runs_of_a_sweep_of_seeds_and_of_a_study_share_a_group(
    path: str, name: str, group: str, tmp_path: Path, of_fakes: dict[str, Node[Any]]
) -> None:
    root = tmp_path / ("runs/study/s" if "study" in path else "runs")
    with open_trackers(of_fakes, directory(tmp_path / path, root=root)) as trackers:
        trackers.finish(RunResult(command="probe", metrics={"loss": 2.0}, seconds=4.0, tokens=8.0))
    (kept,) = FakeService.kept.values()
    assert (kept.run.name, kept.run.group, kept.run.config["seed"]) == (name, group, 3)
    assert kept.result == {
        "result/loss": 2.0,
        "result/seconds": 4.0,
        "result/tokens": 8.0,
        "result/tokens_per_second": 2.0,
    }


@pytest.mark.parametrize(("error", "outcome"), [(Interrupted("x"), "interrupted"), (ValueError("x"), "failed")])
def test_a_service_learns_how_a_run_ended(
    error: Exception, outcome: str, tmp_path: Path, of_fakes: dict[str, Node[Any]]
) -> None:
    run = directory(tmp_path / "runs/pretrain/a", root=tmp_path / "runs")
    with pytest.raises(type(error)), open_trackers(of_fakes, run):
        raise error
    with open_trackers(of_fakes, run) as trackers:
        trackers.finish(RunResult(command="pretrain"))
    assert by_name()["pretrain/a"].outcomes == [outcome, "finished"]


def test_other_ranks_have_no_services(
    tmp_path: Path, of_fakes: dict[str, Node[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmtransfer.training.process_group.is_main", lambda: False)
    with open_trackers(of_fakes, directory(tmp_path / "runs/pretrain/a", root=tmp_path / "runs")) as trackers:
        assert [type(tracker) for tracker in trackers.all] == [Jsonl]
    assert FakeService.kept == {}


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_package_is_a_problem_of_the_configuration(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtransfer.system.optional.find_spec", lambda name: None)
    node = yaml.safe_load((paths.conf_dir() / f"tracker/{package}.yaml").read_text())[package]
    key = f"tracker.{package}"
    problems = component_problems(node, key=key, nodes={key: {"folder"}}, complete=True)
    assert f"pip install 'lmtransfer[{package}]'" in problems.pop(key)
    assert problems == {}


def test_a_choice_named_twice_is_refused() -> None:
    folders = [paths.conf_dir()]
    overrides.check_overrides(["tracker=[jsonl,wandb]", "learning_rates=[1,1]", "tracker.wandb.tags=[a,a]"], folders)
    with refuses(ConfigError, "tracker=[wandb,mlflow,wandb]", "wandb is listed twice"):
        overrides.check_overrides(["tracker=[wandb,mlflow,wandb]"], folders)
