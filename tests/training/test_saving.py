"""Checkpoints by tokens seen: their names, the points that a user gives, and that they are exact under resume."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import Crash, ToyLearner, crash_at, same, toy_trainer, weights_of
from safetensors.torch import load_file
from support.refusals import refuses

from lmtransfer.config.phases import Phase
from lmtransfer.config.revisions import count_text, read_count, split_revision, with_revision
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import CheckpointError, ConfigError, Interrupted
from lmtransfer.pretraining.save_points import check_reached, explain_missed, explain_unreached, save_points
from lmtransfer.training import checkpoints, loop
from lmtransfer.training.averaging import Average, ExponentialAverage
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints, revision_name
from lmtransfer.training.loop import Trainer

WHOLE = [Phase("", 0.0, 1.0)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("0", 0), ("950", 950), ("1k", 1000), ("1500", 1500), ("100k", 10**5), ("1M", 10**6), ("2.5B", 25 * 10**8)],
)
def test_counts_are_read_and_written_in_the_shortest_way(text: str, tokens: int) -> None:
    assert read_count(text) == tokens
    assert count_text(tokens) == text


def test_every_count_survives_its_text() -> None:
    counts = {head * 10**zeros + more for head, zeros, more in itertools.product((1, 25, 999), range(13), (0, 1, 500))}
    assert {read_count(count_text(tokens)) for tokens in counts} == counts


@pytest.mark.parametrize("text", ["", "k", "-5", "1.5", "1K", "1e6", "1.2345k", "0x10", "1 M"])
def test_other_texts_are_no_counts(text: str) -> None:
    assert read_count(text) is None


def test_a_revision_is_what_follows_the_last_at_unless_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x@1M").mkdir()
    assert split_revision("runs/x@100k") == ("runs/x", 100_000)
    assert split_revision("runs/x") == ("runs/x", None)
    assert split_revision("runs/x@best") == ("runs/x@best", None)
    assert split_revision(str(tmp_path / "x@1M")) == (str(tmp_path / "x@1M"), None)
    assert split_revision(f"{tmp_path / 'x@1M'}@2M") == (str(tmp_path / "x@1M"), 2_000_000)
    assert with_revision("runs/x", 2_000_000) == "runs/x@2M"


def test_points_are_whole_numbers_in_ascending_order() -> None:
    assert save_points(TrainSettings(save_at=[0, "1.5k", 10_000])) == (0, 1500, 10_000)
    assert save_points(TrainSettings()) == ()
    with refuses(ConfigError, "train.save_at", "-4", "'20q'", "100 ", "50 "):
        save_points(TrainSettings(save_at=[0, 100, 100, -4, "20q", 50]))


def test_points_beyond_the_budget_are_refused_as_soon_as_it_is_known() -> None:
    points: list[int | str] = [0, "1k", "1001"]
    for enough in ({"tokens": 1001}, {"steps": 11}, {"epochs": 2.0}, {"seconds": 1.0}):
        check_reached(TrainSettings(save_at=points, batch_tokens=100, **enough), WHOLE, steps_per_epoch=6)
    check_reached(TrainSettings(save_at=points, batch_tokens=100, epochs=1), WHOLE)
    for kind, limit in (("tokens", 1000), ("steps", 10), ("epochs", 1)):
        settings: dict[str, Any] = {kind: limit}
        with refuses(ConfigError, "train.save_at", f"train.{kind}={limit}", "1,000", "1001"):
            check_reached(TrainSettings(save_at=points, batch_tokens=100, **settings), WHOLE, steps_per_epoch=10)
    larger = [Phase("first", 0.0, 0.5, train={"batch_tokens": 200}), Phase("second", 0.5, 1.0)]
    check_reached(TrainSettings(save_at=points, batch_tokens=100, steps=10), larger)


def test_points_that_time_or_a_resumed_run_does_not_reach_are_named() -> None:
    (line,) = explain_unreached([0, 1000, 5_000_000], 2000.0)
    assert "5M" in line
    assert "1k" not in line
    assert not explain_unreached([0, 1000], 1000.0)
    (line,) = explain_missed([0, 1000, 2000], tokens=1500, revisions=[0])
    assert "1k" in line
    assert "2k" not in line
    assert not explain_missed([0, 1000], tokens=999, revisions=[0])


class _Watching(Callback):
    """Keeps weights and tokens after each step."""

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
    """The files of all revisions."""
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
