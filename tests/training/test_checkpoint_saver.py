"""A run that is killed and resumed is bit-identical to an uninterrupted run, and so are its revisions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.training import Crash, ToyLearner, crash_at, same, toy_trainer, weights_of
from safetensors.torch import load_file
from support import PYTHONPATH
from support.refusals import refuses

from lmtransfer.errors import CheckpointError, ConfigError, Interrupted
from lmtransfer.runs.create_or_resume import check_resumable
from lmtransfer.training import checkpoints, loop
from lmtransfer.training.averaging import Average, ExponentialAverage
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints, revision_name
from lmtransfer.training.evaluation import ModelSelection
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import Muon
from lmtransfer.training.trackers.base import Jsonl

TIMING = {"seconds", "tokens_per_second"}


def _start(folder: Path, workers: int, *options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(
        [sys.executable, "-m", "support.training_run", str(folder), str(workers), *options],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes]) -> None:
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error.decode()


def _lines(folder: Path) -> list[str]:
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def _records(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in _lines(folder)]


def _kill_after(folder: Path, num_lines: int, workers: int, *options: str) -> None:
    """Start a run, and kill it and its workers with SIGKILL once its log has that many lines."""
    process = _start(folder, workers, "slow", *options)
    deadline = time.monotonic() + 100
    while len(_lines(folder)) < num_lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert process.poll() is None, (process.stderr.read() if process.stderr else b"").decode()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_killed_and_resumed_twice_is_bit_identical(tmp_path: Path) -> None:
    straight, folder, workers = tmp_path / "straight", tmp_path / "broken", 2
    _finish(_start(straight, 0))
    _kill_after(folder, 25, workers)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')  # a line cut off by the kill
    _kill_after(folder, 37, workers, "resume")
    _finish(_start(folder, workers, "resume"))
    assert len(_records(straight)) == 60
    assert _records(folder) == _records(straight)
    ours, theirs = np.load(folder / "weights.npz"), np.load(straight / "weights.npz")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs.files)


def test_keys_that_may_not_change_are_refused_by_name() -> None:
    old = {
        "name": "a",
        "seed": 0,
        "model": {"dim": 256, "betas": [1, 2]},
        "hardware": {"threads": 2},
        "train": {"steps": 10, "save_every": 5},
    }
    new = {
        "name": "b",
        "seed": 1,
        "model": {"dim": 256, "betas": (1, 2)},
        "hardware": {"threads": 4},
        "train": {"steps": 10, "save_every": 7, "patience": 3},
    }
    with refuses(ConfigError) as refused:
        check_resumable(old, new)
    of_seed, of_patience = refused.value.problems
    assert re.match(r"seed .*\b0 .*\b1 ", of_seed)
    assert re.match(r"train\.patience .*\b3 ", of_patience)
    check_resumable(old, {**old, "name": "c", "resume": True})


@pytest.mark.parametrize("key", ["steps", "tokens", "seconds", "epochs"])
def test_a_longer_budget_on_resume_leads_to_a_new_run_from_these_weights(key: str) -> None:
    with refuses(ConfigError, f"train.{key}", "10", "20", "init=<this run>"):
        check_resumable({"train": {key: 10}}, {"train": {key: 20}})
    for old, new in (({"train": {key: 10}, "task": {}}, {"train": {key: 20}, "task": {}}), ({"seed": 0}, {"seed": 1})):
        with refuses(ConfigError, "name=...") as caught:
            check_resumable(old, new)
        assert "init=" not in str(caught.value)
    check_resumable(old, new, allowed=["*"])


@pytest.mark.parametrize(("old", "new"), [({"model": {"dim": 1}}, {"model": {}}), ({"init": None}, {"init": "runs/x"})])
def test_a_key_that_vanished_or_was_null_is_a_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    with refuses(ConfigError, *old):
        check_resumable(old, new)


def _in_process(folder: Path, values: Mapping[int, float]) -> Trainer:
    """A run that is evaluated every other step with these values, and saved at each best value and at the end."""
    learner = ToyLearner(dropout=0.3)
    trainer = toy_trainer(
        learner,
        optimizer=Muon(learner=learner),
        budget=Budget(steps=max(values)),
        evaluate=lambda: {"loss": values[trainer.state.step]},
        eval_every=2,
        selection=ModelSelection(),
        checkpoints=Checkpoints(folder / "checkpoints"),
        trackers=[Jsonl(folder=folder)],
    )
    return trainer


def _kept(folder: Path) -> dict[str, Any]:
    """Return the tensors and the state (without times) of each checkpoint, in place or staged, and the log."""
    kept: dict[str, Any] = {"log": _records(folder)}
    for checkpoint in (folder / "checkpoints").iterdir():
        state = json.loads((checkpoint / "state.json").read_text())
        record = {key: value for key, value in state["record"].items() if key not in TIMING}
        kept[checkpoint.name] = {**state, "seconds": None, "record": record}
        for file in ("model", "optimizer"):
            kept[checkpoint.name][file] = (checkpoint / f"{file}.safetensors").read_bytes()
    return kept


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    _in_process(tmp_path, {2: 0.5}).train()
    before = _kept(tmp_path)
    trainer = _in_process(tmp_path, {2: 0.5})
    trainer.resume()
    trainer.train()
    assert _kept(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("values", [{2: 0.5, 4: 0.7}, {2: 0.5}], ids=["the best comes early", "the best is the last"])
def test_a_crash_anywhere_in_any_save_leaves_the_checkpoints_of_a_run_without_one(
    values: dict[int, float], tmp_path: Path
) -> None:
    (tmp_path / "straight").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        operations = crash_at(patch, -1, inside=tmp_path)
        _in_process(tmp_path / "straight", values).train()
        number = operations()
    expected = _kept(tmp_path / "straight")
    assert set(expected) == {"log", "best", "last"}
    assert number > 30
    for call in range(1, number + 1):
        folder = tmp_path / str(call)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, call, inside=tmp_path)
            with pytest.raises(Crash):
                _in_process(folder, values).train()
        trainer = _in_process(folder, values)
        trainer.resume()
        trainer.train()
        assert _kept(folder) == expected, f"after a crash in operation {call} of {number}"


class _Watching(Callback):
    """Records the weights and the token count after each step."""

    name = "watching"

    def __init__(self, learner: ToyLearner) -> None:
        self.learner = learner
        self.seen: list[tuple[int, dict[str, torch.Tensor]]] = [(0, weights_of(learner))]

    def on_step_end(self, outcome: Any, record: Any, *, fraction: float) -> tuple[str, ...]:
        self.seen.append((record["tokens"], weights_of(self.learner)))
        return ()


def _trainer(folder: Path, *, learner: ToyLearner | None = None, **settings: Any) -> Trainer:
    settings = {"save_at": (0, 1, 30, 31, 60), "save_every": 3, **settings}
    return toy_trainer(learner or ToyLearner(dropout=0.3), checkpoints=Checkpoints(folder / "checkpoints"), **settings)


def test_a_revision_is_the_model_after_the_first_step_with_so_many_tokens(tmp_path: Path) -> None:
    learner = ToyLearner(dropout=0.3)
    watching = _Watching(learner)
    state = _trainer(tmp_path, learner=learner, callbacks=[watching]).train()
    kept = Checkpoints(tmp_path / "checkpoints").revisions()
    assert list(kept) == [0, 1, 30, 31, 60]
    assert state.tokens > 60
    for point, folder in kept.items():
        tokens, weights = next((tokens, weights) for tokens, weights in watching.seen if tokens >= point)
        assert same(load_file(folder / "model.safetensors"), weights)
        assert checkpoints.open_checkpoint(folder).state["tokens"] == tokens
        assert {path.name for path in folder.iterdir()} == {"model.safetensors", "state.json", "manifest.json"}


def test_a_revision_of_averaged_weights_is_their_average(tmp_path: Path) -> None:
    learner = ToyLearner()
    watching = _Watching(learner)
    average = Average(list(learner.parameters()), ExponentialAverage(0.9))
    _trainer(tmp_path, learner=learner, average=average, callbacks=[watching], save_at=(0, 30)).train()
    num_steps = next(place for place, (tokens, _) in enumerate(watching.seen) if tokens >= 30)
    mean = watching.seen[1][1]
    for num, (_, weights) in enumerate(watching.seen[2 : num_steps + 1], start=1):
        decay = min(0.9, (1 + num) / (10 + num))
        mean = {name: decay * value + (1 - decay) * weights[name] for name, value in mean.items()}
    found = load_file(tmp_path / "checkpoints" / "tokens-30" / "model.safetensors")
    assert num_steps > 2
    torch.testing.assert_close(found, mean)
    assert not same(found, watching.seen[num_steps][1])


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files of all revisions."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("checkpoints/tokens-*/*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_crash_anywhere_leaves_the_revisions_of_a_run_without_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_at": (0, 5, 18), "budget": Budget(steps=3), "save_every": 2}
    with pytest.MonkeyPatch.context() as patch:
        operations = crash_at(patch, -1, inside=tmp_path)
        _trainer(tmp_path / "straight", **settings).train()
        number = operations()
    expected = _files(tmp_path / "straight")
    assert {name.split("/")[1] for name in expected} == {"tokens-0", "tokens-5", "tokens-18"}
    for call in range(1, number + 1):
        folder = tmp_path / str(call)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, call, inside=tmp_path)
            with pytest.raises(Crash):
                _trainer(folder, **settings).train()
        trainer = _trainer(folder, **settings)
        trainer.resume()
        trainer.train()
        assert _files(folder) == expected, f"after a crash in operation {call} of {number}"
        assert not list(folder.rglob(".tokens-*"))


def test_a_signal_in_an_evaluation_loses_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _trainer(tmp_path / "straight", evaluate=lambda: {"loss": 1.0}, eval_every=1).train()
    stopping = iter([None, None, "SIGTERM", "SIGTERM"])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "requested_stop", lambda: next(stopping, None))
        with pytest.raises(Interrupted):
            _trainer(tmp_path / "broken", evaluate=lambda: {"loss": 1.0}, eval_every=1).train()
    trainer = _trainer(tmp_path / "broken", evaluate=lambda: {"loss": 1.0}, eval_every=1)
    trainer.resume()
    trainer.train()
    assert _files(tmp_path / "broken") == _files(tmp_path / "straight")


def test_revisions_of_later_steps_than_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for tokens, step in ((0, 0), (100, 4), (200, 5), (300, 9)):
        tensors = {"model": {"x": torch.zeros(1)}}
        checkpoints.save(revision_name(tokens), tensors=tensors, state={"step": step, "tokens": tokens})
    (tmp_path / "tokens-300" / "state.json").write_text("torn")
    checkpoints.drop_revisions(after=4)
    assert list(checkpoints.revisions()) == [0, 100, 300]


def test_room_for_the_revisions_is_needed_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(tmp_path)
    usage = type("Usage", (), {"free": 3 * trainer.saver.num_bytes()})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with refuses(CheckpointError, "train.save_at"):
        trainer.train()
    _trainer(tmp_path / "none", save_at=()).train()
