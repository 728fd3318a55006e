"""Run directories and their logs."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.training import files_below, toy_trainer
from support.refusals import refuses

from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.create_or_resume import LOCK, release
from lmtransfer.runs.result import JointResult, RunResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.training.trackers.base import Jsonl

RESULT = RunResult(command="pretrain", metrics={"loss": 1.5}, seconds=4.0, tokens=10)


def test_an_existing_run_is_refused_unless_resuming(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "pretrain", "imdb")
    assert run.path == tmp_path / "pretrain" / "imdb"
    (run.path / "precious").write_text("keep me")
    with refuses(RunDirectoryError, str(run.path), "name=", "resume=true"):
        RunDirectory.create(tmp_path, "pretrain", "imdb")
    assert RunDirectory.create(tmp_path, "pretrain", "imdb", resume=True).path == run.path
    assert (run.path / "precious").read_text() == "keep me"


@pytest.mark.parametrize("name", ["metrics.jsonl", "logs", "logs/seed-0.log", "checkpoints"])
def test_a_run_with_links_out_of_it_is_not_resumed(name: str, tmp_path: Path) -> None:
    """Resuming appends to the metrics and writes logs and checkpoints."""
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    run.write_config({})
    release(run.path)
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).symlink_to(tmp_path)
    with refuses(RunDirectoryError, f"a/{name}", "link"):
        RunDirectory.create(tmp_path, "pretrain", "a", resume=True)


def test_names_may_nest_and_may_not_lead_elsewhere(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, "finetune", "imdb-ft/seed-0").path.name == "seed-0"
    for name in ("", "../x", "/etc/x", "a/../../x", "a//b", "."):
        with refuses(RunDirectoryError, f"name={name!r}"):
            RunDirectory.create(tmp_path, "finetune", name)
    assert [path.name for path in tmp_path.iterdir()] == ["finetune"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with refuses(RunDirectoryError, "output_root="):
        RunDirectory.create(tmp_path / "file", "pretrain", "a")


def test_a_run_can_be_moved_and_holds_no_path_of_its_own(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "somewhere_odd", "pretrain", "a")
    run.write_config({"name": "a", "train": {"steps": 3, "betas": [0.9, 0.98]}})
    run.write_versions(versions(data={"corpus": "abc"}))
    run.write_result(RESULT)
    toy_trainer(checkpoints=run.checkpoints, trackers=[Jsonl(folder=run.path)]).train()
    for file in files_below(run.path):
        assert b"somewhere_odd" not in (run.path / file).read_bytes(), file
    shutil.move(run.path, tmp_path / "b")
    moved = RunDirectory.open(tmp_path / "b")
    assert moved.read_config()["train"]["betas"] == [0.9, 0.98]
    assert moved.read_result() == RESULT
    assert moved.is_finished
    assert moved.best_checkpoint().name == "last"
    resumed = toy_trainer(checkpoints=moved.checkpoints)
    resumed.resume()
    assert resumed.state.step == 10


def test_what_is_missing_or_damaged_is_one_clear_error(tmp_path: Path) -> None:
    with refuses(RunDirectoryError, str(tmp_path / "nowhere")):
        RunDirectory.open(tmp_path / "nowhere")
    with refuses(RunDirectoryError, str(tmp_path), "config.yaml"):
        RunDirectory.open(tmp_path)
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    with refuses(RunDirectoryError, str(run.path), "result", "resume=true"):
        run.read_result()
    with refuses(RunDirectoryError, str(run.path), "checkpoint", "resume=true"):
        run.best_checkpoint()
    run.config_path.write_text("a: [1, 2")
    with refuses(RunDirectoryError, str(run.config_path), "YAML"):
        run.read_config()
    run.config_path.write_text("just text")
    with refuses(RunDirectoryError, str(run.config_path), "mapping"):
        run.read_config()


def test_a_config_cannot_execute_anything(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    run.config_path.write_text("a: !!python/object/apply:os.system ['touch /tmp/hacked']")
    with pytest.raises(RunDirectoryError):
        run.read_config()


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    with refuses(RunDirectoryError, str(run.config_path), "deleted"):
        run.write_result(RESULT)
    run.write_config({"name": "a"})
    run.write_result(replace(RESULT, more={"learning_curve": [1, 2]}))
    said = json.loads(run.result_path.read_text())
    assert (said["learning_curve"], said["task"], said["tokens_per_second"]) == ([1, 2], None, 2.5)
    assert run.read_result().values() == said
    with refuses(RunDirectoryError, "result.json", "main_metric"):
        run.read_result(SeedResult)
    of_seed = SeedResult(command="finetune", metrics={"f1": 0.5}, main_metric="f1", seed=3, collapsed=False)
    assert of_seed.score == 0.5
    run.result_path.write_text('{"format": 1, "metrics": {"f1": 1.0}, "mean": 1.0, "further": 2}')
    assert run.read_result().values()["further"] == 2
    with refuses(RunDirectoryError, "result.json: ", "is missing"):
        run.read_result(JointResult)
    for found in ("", '"format": 2, '):
        run.result_path.write_text(f'{{{found}"metrics": {{}}}}')
        with refuses(RunDirectoryError, "result.json has", "format 1"):
            run.read_result()


def test_versions_tell_what_a_run_was_made_with(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    assert versions(folder=tmp_path)["git_commit"] is None
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    found = versions(data={"corpus": "abc"}, folder=tmp_path)
    assert len(found["git_commit"]) == 40
    (tmp_path / "file").write_text("2")
    assert versions(folder=tmp_path)["git_commit"] == found["git_commit"] + "+changes"
    assert (
        found["packages"]["torch"] == torch.__version__.partition("+")[0]
        or found["packages"]["torch"] == torch.__version__
    )
    assert found["data"] == {"corpus": "abc"}
    assert yaml.safe_dump(found), "plain values"


def test_what_a_killed_writer_has_staged_in_its_runs_goes_with_the_next_one(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "finetune", "a")
    run.write_config({"name": "a"})
    staged = [run.path / part / ".config.yaml.elsewhere-4194305.tmp" for part in ("", "seed-0", "control/seed-0")]
    of_others = run.path / "nested" / ".config.yaml.elsewhere-4194305.tmp"
    for path in (*staged, of_others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    (of_others.parent / LOCK).touch()  # a separate run, which another process may be writing
    release(run.path)
    RunDirectory.create(tmp_path, "finetune", "a", resume=True)
    assert [path.exists() for path in staged] == [False] * 3
    assert of_others.exists()


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
