"""Revisions by token count: their names, the points that a user sets, and that they are exact on resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import Crash, ToyLearner, crash_at, same, toy_trainer, weights_of
from safetensors.torch import load_file
from support.refusals import refuses

from lmtransfer.errors import CheckpointError, Interrupted
from lmtransfer.training import checkpoints, loop
from lmtransfer.training.averaging import Average, ExponentialAverage
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints, revision_name
from lmtransfer.training.loop import Trainer


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
