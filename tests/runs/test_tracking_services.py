"""The real wandb (offline), MLflow, Trackio and TensorBoard: their records of a run, read with their own readers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.wandb_file import records

pytestmark = [pytest.mark.extras, pytest.mark.slow, pytest.mark.timeout(600)]

SERVICES = ["wandb", "mlflow", "trackio", "tensorboard"]
PRETRAIN = ["pretrain", "experiment=null", "train.seconds=null", *TINY, *TEXT, *SHORT, "hardware=exact"]
PRETRAIN += ["train.log_every=1", "train.eval_every=20"]

#: For each service: its rows (step and loss, in order), settings, group and result of a run, by the name of the run.
Read = Callable[[Path, str], dict[str, Any]]


def of_wandb(folder: Path, name: str) -> dict[str, Any]:
    rows, ids, groups, config, summary, exits = [], set(), set(), {}, {}, []
    for path in sorted((folder / "runs" / name / "trackers/wandb").glob("offline-run-*/run-*.wandb")):
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                assert record.run.display_name == name
                ids.add(record.run.run_id)
                groups.add(record.run.run_group)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                rows.append((record.history.step.num, float(items["loss"])))
            elif kind == "summary":
                summary |= {item.key: item.value_json for item in record.summary.update}
            elif kind == "exit":
                exits.append(record.exit.exit_code)
    (group,) = groups
    assert len(ids) == 1, "a resumed run has the same id in every file"
    return {"rows": rows, "seed": config["seed"], "group": group, "result": float(summary["result/loss"]),
            "ended": exits[-1:] == [0]}  # fmt: skip


def of_mlflow(folder: Path, name: str) -> dict[str, Any]:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder / 'runs/mlflow.db'}")
    experiment = client.get_experiment_by_name("lmtransfer")
    (run,) = [run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == name]
    history = sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss"))
    return {"rows": history, "seed": int(run.data.params["seed"]), "group": run.data.tags["group"],
            "result": run.data.metrics["result/loss"], "ended": run.info.status == "FINISHED"}  # fmt: skip


def of_trackio(folder: Path, name: str) -> dict[str, Any]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = [run for run in trackio.Api().runs("lmtransfer") if run.name == name]
    logs = SQLiteStorage.get_logs("lmtransfer", name, run_id=run.id)
    rows = [(log["step"], log["loss"]) for log in logs if "loss" in log]
    return {"rows": rows, "seed": run.config["seed"], "group": run.config["_Group"],
            "result": logs[-1]["result/loss"], "ended": True}  # fmt: skip


def of_tensorboard(folder: Path, name: str) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "runs" / name / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    (config,) = events.Tensors("config/text_summary")
    settings = json.loads(config.tensor_proto.string_val[0])
    rows = [(event.step, event.value) for event in events.Scalars("loss")]
    result = events.Scalars("result/loss")[-1].value
    group = name.rpartition("/")[0]  # the folders are the groups
    return {"rows": rows, "seed": settings["seed"], "group": group, "result": result, "ended": True}


READERS: dict[str, Read] = {
    "wandb": of_wandb, "mlflow": of_mlflow, "trackio": of_trackio, "tensorboard": of_tensorboard,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run that was killed and resumed, and a sweep of two points, each with two seeds."""
    folder = tmp_path_factory.mktemp("services")
    documents = [f"the boat lay on the shore number {number} all day while rain fell" for number in range(80)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("HOME", str(folder))  # no user's API key
        killed_and_resumed(folder)
        swept(folder)
        yield folder


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lmtransfer", *words, f"tracker=[{','.join(SERVICES)}]"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def killed_and_resumed(folder: Path) -> None:
    """Kill a run soon after step 30 of 400, when its last checkpoint is from step 20 or soon after."""
    words = [*PRETRAIN, "train.steps=400", "train.save_every=10", "name=killed"]
    metrics = folder / "runs/pretrain/killed/metrics.jsonl"
    process = start(folder, *words)
    while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) < 30):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was to be killed before its end"
    _, said = (process := start(folder, *words, "resume=true")).communicate()
    assert process.returncode == 0, said
    assert "is off" not in said, said


def swept(folder: Path) -> None:
    words = [*PRETRAIN, "-m", "train.steps=3", "objective.mask_prob=0.15,0.4", "seeds=2", "name=swept"]
    _, said = (process := start(folder, *words)).communicate()
    assert process.returncode == 0, said
    assert "is off" not in said, said


def logged(folder: Path, name: str) -> list[tuple[int, float]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [(record["step"], record["loss"]) for record in map(json.loads, lines)]


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_and_resumed_run_is_one_record(service: str, folder: Path) -> None:
    name = "pretrain/killed"
    found, expected = READERS[service](folder, name), logged(folder, name)
    assert [step for step, _ in expected] == list(range(1, 401))
    steps = [step for step, _ in found["rows"]]
    if service == "wandb":  # a kill loses data that wandb's process has not flushed to the offline file
        assert steps == sorted(set(steps))
        assert len(expected) - len(steps) < 200
        expected = [row for row in expected if row[0] in set(steps)]
    assert steps == [step for step, _ in expected], "each step once, and in order"
    assert [loss for _, loss in found["rows"]] == pytest.approx([loss for _, loss in expected], rel=1e-6)
    result = json.loads((folder / "runs" / name / "result.json").read_text())
    assert found["result"] == pytest.approx(result["metrics"]["loss"], rel=1e-6)
    assert found["seed"] == 0
    assert found["ended"]


@pytest.mark.parametrize("service", SERVICES)
def test_the_runs_of_a_sweep_share_a_group(service: str, folder: Path) -> None:
    names = [
        f"pretrain/swept/objective.mask_prob={value}/seed-{seed}" for value in ("0.15", "0.4") for seed in range(2)
    ]
    found = {name: READERS[service](folder, name) for name in names}
    for name in names:
        assert [step for step, _ in found[name]["rows"]] == [1, 2, 3]
        assert found[name]["seed"] == int(name[-1])
        assert found[name]["group"] == (name.rpartition("/")[0] if service == "tensorboard" else "pretrain/swept")


def test_services_that_cannot_be_reached_leave_a_whole_run(
    folder: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    start_time = time.monotonic()
    done = run_cli(
        *PRETRAIN, "train.steps=3", "name=apart", "tracker=[wandb,mlflow,trackio]", "tracker.mlflow.uri=http://127.0.0.1:9",
        "tracker.trackio.space=nobody/nowhere", cwd=folder, WANDB_MODE="online", WANDB_API_KEY=None, HF_TOKEN=None,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "is off" in line]
    assert [line.split()[2] for line in lines] == ["wandb", "mlflow", "trackio"]
    assert "API key" in lines[0]
    assert "127.0.0.1" in lines[1]
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start_time < 200
    assert len(logged(folder, "pretrain/apart")) == 3
    assert (folder / "runs/pretrain/apart/result.json").exists()
    assert os.environ["WANDB_MODE"] == "offline"
