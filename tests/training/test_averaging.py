"""Weight averages match hand-written recurrences and torch's own, do not affect training, and are exact on resume."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import Recorder, ToyBatch, ToyLearner, ToyStream, rows, same, toy_trainer, weights_of
from safetensors.torch import load_file
from support.refusals import refuses
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lmtransfer.config.check import read_group
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError, Interrupted
from lmtransfer.training import loop
from lmtransfer.training.averaging import Average, ExponentialAverage, LastPartMean, weight_average
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.evaluation import ModelSelection, evaluate_losses
from lmtransfer.training.loop import Trainer

NEWEST = [ExponentialAverage(0.9), LastPartMean(0.4)]


def _trainer(newest: Any, *, learner: ToyLearner | None = None, **settings: Any) -> Trainer:
    learner = learner or ToyLearner(dropout=0.3)
    average = None if newest is None else Average(list(learner.parameters()), newest)
    return toy_trainer(learner, average=average, **settings)


class _Watching(Callback):
    """A callback that records the weights after each step that changed them."""

    name = "watching"

    def __init__(self, learner: ToyLearner) -> None:
        self.learner = learner
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, outcome: Any, record: Any, *, fraction: float) -> tuple[str, ...]:
        self.seen.append(weights_of(self.learner))
        return ()


def _seen_and_averaged(newest: Any, **settings: Any) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return the weights after each update, and the average at the end."""
    learner = ToyLearner()
    watching = _Watching(learner)
    trainer = _trainer(newest, learner=learner, callbacks=[watching], **settings)
    trainer.train()
    assert trainer.average is not None
    with trainer.average.swap_in():
        averaged = weights_of(learner)
    assert same(weights_of(learner), watching.seen[-1])
    return watching.seen, averaged


def test_the_exponential_average_is_its_recurrence() -> None:
    seen, averaged = _seen_and_averaged(ExponentialAverage(0.3))
    for name, average in averaged.items():
        by_hand = seen[0][name]
        for num, weights in enumerate(seen[1:], start=1):
            decay = min(0.3, (1 + num) / (10 + num))  # 2/11, 3/12, 4/13, then 0.3
            by_hand = decay * by_hand + (1 - decay) * weights[name]
        torch.testing.assert_close(average, by_hand, rtol=1e-12, atol=1e-14)


def test_of_a_short_memory_it_is_torchs() -> None:
    seen, averaged = _seen_and_averaged(ExponentialAverage(0.1))  # always below the warm-up
    learner = ToyLearner()
    of_torch = AveragedModel(learner, multi_avg_fn=get_ema_multi_avg_fn(0.1))
    for weights in seen:
        learner.load_state_dict(weights)
        of_torch.update_parameters(learner)
    for name, expected in of_torch.module.state_dict().items():
        torch.testing.assert_close(averaged[name], expected, rtol=1e-12, atol=1e-14)


def test_the_last_part_is_the_mean_of_its_weights() -> None:
    seen, averaged = _seen_and_averaged(LastPartMean(0.3))
    assert len(seen) == 10
    for name, average in averaged.items():
        mean = torch.stack([weights[name] for weights in seen[-3:]]).mean(0)
        torch.testing.assert_close(average, mean, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(average, torch.stack([weights[name] for weights in seen[-4:]]).mean(0))


class _OneBad(ToyStream):
    def micro_batch(self, number: int) -> ToyBatch:
        batch = super().micro_batch(number)
        if number == 8:
            batch.x.fill_(float("nan"))
        return batch


def test_a_step_without_an_update_leaves_it_finite() -> None:
    """A skipped step counts like any other, because the host of a GPU does not know whether the weights changed."""
    seen, averaged = _seen_and_averaged(LastPartMean(1.0), stream=_OneBad())
    assert [same(one, other) for one, other in pairwise(seen)] == [step == 3 for step in range(9)]
    for name, average in averaged.items():
        torch.testing.assert_close(average, torch.stack([weights[name] for weights in seen]).mean(0))


@pytest.mark.parametrize("newest", NEWEST)
def test_training_is_as_it_is_without(newest: Any) -> None:
    logs: list[Recorder] = []
    ends = []
    for chosen in (None, newest):
        logs.append(Recorder())
        learner = ToyLearner(dropout=0.3)
        _trainer(chosen, learner=learner, trackers=[logs[-1]]).train()
        ends.append(weights_of(learner))
    assert same(*ends)
    timed = ("seconds", "tokens_per_second")
    untimed = [[{k: v for k, v in one.items() if k not in timed} for one in log.records] for log in logs]
    assert untimed[0] == untimed[1]


def test_what_is_measured_is_the_average_and_the_weights_come_back_whatever_happens() -> None:
    learner = ToyLearner()
    average = Average(list(learner.parameters()), LastPartMean(1.0))
    before = weights_of(learner)
    with average.swap_in():  # the average has not begun
        assert same(weights_of(learner), before)
    average.on_progress(fraction=0.5)
    with torch.no_grad():
        learner.out.weight.add_(2.0)
    average.on_progress(fraction=1.0)
    after = weights_of(learner)
    with average.swap_in():
        torch.testing.assert_close(learner.out.weight.detach(), before["out.weight"] + 1.0)
    assert same(weights_of(learner), after)

    def interrupted() -> None:
        with average.swap_in():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert same(weights_of(learner), after)


def _run(folder: Path, newest: Any, *, stop_after: int | None = None, resume: bool = False) -> Recorder:
    learner, log = ToyLearner(dropout=0.3), Recorder()
    held_out = [rows(10**6 + n, 5) for n in range(3)]
    trainer = _trainer(
        newest,
        learner=learner,
        evaluate=lambda: evaluate_losses(learner, held_out),
        eval_every=3,
        selection=ModelSelection(),
        checkpoints=Checkpoints(folder / "checkpoints"),
        trackers=[log],
    )
    if resume:
        trainer.resume()
    with pytest.MonkeyPatch.context() as patch:
        if stop_after is not None:
            patch.setattr(loop, "requested_stop", lambda: "Ctrl-C" if trainer.state.step == stop_after else None)
            with pytest.raises(Interrupted):
                trainer.train()
        else:
            trainer.train()
    return log


def _saved(folder: Path, checkpoint: str) -> dict[str, dict[str, torch.Tensor]]:
    return {path.stem: load_file(path) for path in sorted((folder / "checkpoints" / checkpoint).glob("*.safetensors"))}


@pytest.mark.parametrize("newest", NEWEST)
@pytest.mark.parametrize("step", [4, 6, 7, 8])  # before the last part, at its start, and in it
def test_a_run_that_goes_on_is_the_uninterrupted_one(tmp_path: Path, newest: Any, step: int) -> None:
    whole = _run(tmp_path / "whole", newest)
    _run(tmp_path / "cut", newest, stop_after=step)
    _run(tmp_path / "cut", newest, resume=True)
    for checkpoint in ("last", "best"):
        one, other = _saved(tmp_path / "whole", checkpoint), _saved(tmp_path / "cut", checkpoint)
        assert one.keys() == other.keys()
        assert all(same(one[file], other[file]) for file in one), checkpoint
    ends = _saved(tmp_path / "whole", "last")
    assert not torch.allclose(ends["raw"]["out.weight"], ends["model"]["out.weight"])
    learner = ToyLearner()
    learner.load_state_dict(ends["model"])  # other commands read the model that was evaluated
    measured = evaluate_losses(learner, [rows(10**6 + n, 5) for n in range(3)])
    assert whole.records[-1]["validation/loss"] == pytest.approx(measured["loss"], rel=1e-12)


def test_before_it_begins_nothing_lies_beside_the_model(tmp_path: Path) -> None:
    _run(tmp_path, LastPartMean(0.4), stop_after=4)
    assert "raw" not in _saved(tmp_path, "last")


def test_no_average_saves_what_it_always_did(tmp_path: Path) -> None:
    _run(tmp_path, None)
    assert sorted(_saved(tmp_path, "last")) == ["model", "optimizer"]
    assert "averaged" not in (tmp_path / "checkpoints/last/state.json").read_text()


def test_two_averages_are_refused_and_so_are_values_that_mean_nothing() -> None:
    with refuses(ConfigError, "train.ema_decay=0.9", "train.average_last=0.2"):
        weight_average(ema_decay=0.9, average_last=0.2)
    assert weight_average(ema_decay=None, average_last=None) is None
    for key, value in (("ema_decay", 1.0), ("ema_decay", 0.0), ("average_last", 0.0), ("average_last", 1.5)):
        with refuses(ConfigError, f"{key}: {value}"):
            read_group(TrainSettings, {key: value}, key="")
