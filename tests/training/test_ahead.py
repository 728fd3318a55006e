"""A device that works beside the host: the host reads the numbers of steps where a line is logged.

The CPU plays that device, so that both ways can be compared: records, weights, saved states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import Recorder, ToyBatch, ToyLearner, ToyStream, same, toy_trainer, weights_of
from safetensors.torch import load_file

from lmtransfer.errors import Interrupted
from lmtransfer.training import loop
from lmtransfer.training.averaging import Average, ExponentialAverage
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.learner import Loss
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import Adagrad, AdamW, Lamb, Muon
from lmtransfer.training.optim.schedules import Linear
from lmtransfer.training.precision import LossScale, Precision
from lmtransfer.training.update import PendingStep


def _ahead(learner: ToyLearner, **settings: Any) -> Trainer:
    trainer = toy_trainer(learner, **settings)
    trainer.updater.asynchronous = True
    return trainer


def _plain_numbers(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what depends on the clock."""
    return [{k: v for k, v in one.items() if k not in ("seconds", "tokens_per_second")} for one in records]


class _Bad(ToyStream):
    """The targets of micro-batch 9, which is in step 4, are not finite."""

    def micro_batch(self, number: int) -> ToyBatch:
        batch = super().micro_batch(number)
        return ToyBatch(batch.x, batch.y * float("nan"), batch.mask, batch.keys) if number == 9 else batch


class _Recurrent(ToyLearner):
    """Its state is a tensor of the rows before, which enters the loss."""

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        before = torch.zeros((), dtype=batch.x.dtype) if recurrent_state is None else recurrent_state["mean"]
        losses, _ = super().losses(ToyBatch(batch.x + 0.1 * before, batch.y, batch.mask, batch.keys))
        return losses, {"mean": (batch.x.mean() + batch.y.mean()).detach(), "length": len(batch.x)}


@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
@pytest.mark.parametrize("stream", [ToyStream, _Bad])
@pytest.mark.parametrize("optimizer", [AdamW, Muon])
@pytest.mark.parametrize("of", [ToyLearner, _Recurrent])
def test_records_and_weights_are_those_of_a_host_that_waits(
    of: type[ToyLearner], optimizer: type[AdamW | Muon], stream: type[ToyStream], max_grad_norm: float | None
) -> None:
    learners, records = (of(dropout=0.1), of(dropout=0.1)), (Recorder(), Recorder())
    for learner, recorder, make in zip(learners, records, (toy_trainer, _ahead), strict=True):
        make(
            learner,
            stream=stream(),
            optimizer=optimizer(learner=learner, learning_rate=0.05),
            schedule=Linear(warmup_fraction=0.3),
            trackers=[recorder],
            max_grad_norm=max_grad_norm,
            evaluate=lambda learner=learner: {"loss": sum(p.sum().item() for p in learner.parameters())},
            eval_every=4,
            log_every=2,
        ).train()
    waited, ahead = (_plain_numbers(recorder.records) for recorder in records)
    assert [one["step"] for one in ahead] == [2, 4, 6, 8, 10]
    assert ahead[-1]["skipped"] == (stream is _Bad)
    for one, other in zip(waited, ahead, strict=True):
        assert other == pytest.approx(one, rel=1e-6, nan_ok=True)
    for name, tensor in weights_of(learners[0]).items():
        torch.testing.assert_close(weights_of(learners[1])[name], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("optimizer", [AdamW, Muon])
def test_a_step_that_is_not_finite_changes_nothing(optimizer: type[AdamW | Muon]) -> None:
    learner = ToyLearner()
    trainer = _ahead(learner, stream=_Bad(), optimizer=optimizer(learner=learner))
    make, weights, states = trainer.updater.launch_step, [], []

    def watched(*arguments: Any, **settings: Any) -> PendingStep:
        made = make(*arguments, **settings)
        weights.append(weights_of(learner))
        states.append({name: tensor.clone() for name, tensor in trainer.optimizer.state_dict().items()})
        return made

    trainer.updater.launch_step = watched  # type: ignore[method-assign]
    trainer.train()
    for seen in (weights, states):
        unchanged = [same(before, after) for before, after in zip(seen, seen[1:], strict=False)]
        assert unchanged == [step == 3 for step in range(9)]
    ages = {float(value) for key, value in trainer.optimizer.state_dict().items() if key.endswith("/step")}
    assert ages == {9.0}


def test_the_host_reads_where_it_logs_evaluates_or_saves() -> None:
    trainer = _ahead(
        ToyLearner(),
        save_every=6,
        log_every=4,
        budget=Budget(steps=11),
        evaluate=lambda: {"loss": 1.0},
        eval_every=9,
    )
    read, numbers = trainer.updater.read, []

    def watched(made: Sequence[PendingStep]) -> Iterator[Any]:
        numbers.append(len(made))
        return read(made)

    trainer.updater.read = watched  # type: ignore[method-assign]
    trainer.train()
    assert numbers == [4, 2, 2, 1, 2]  # at steps 4, 6, 8, 9 and 11


@pytest.mark.parametrize("stop_at", [3, 5])
def test_a_stop_saves_the_weights_of_the_step_that_it_names(
    stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, recorder = ToyLearner(), Recorder()
    _ahead(whole, log_every=4).train()
    stopped = _ahead(ToyLearner(), log_every=4, checkpoints=Checkpoints(tmp_path), trackers=[recorder])
    with monkeypatch.context() as patch:
        for asked in ("agreed_stop", "requested_stop"):
            patch.setattr(loop, asked, lambda: "SIGTERM" if stopped.state.step >= stop_at else None)
        with pytest.raises(Interrupted):
            stopped.train()
    resumed = ToyLearner()
    trainer = _ahead(resumed, log_every=4, checkpoints=Checkpoints(tmp_path), trackers=[recorder])
    trainer.resume()
    assert trainer.state.step == stop_at
    trainer.train()
    assert same(weights_of(whole), weights_of(resumed))
    assert [record["step"] for record in recorder.records] == [4, 8, 10]


def test_a_revision_has_the_weights_of_the_step_that_reached_it(tmp_path: Path) -> None:
    kept = []
    for name, make in (("waited", toy_trainer), ("ahead", _ahead)):
        checkpoints = Checkpoints(tmp_path / name)
        make(ToyLearner(), checkpoints=checkpoints, save_at=(0, 30, 60), log_every=50).train()
        revisions = checkpoints.revisions().items()
        kept.append({point: load_file(folder / "model.safetensors") for point, folder in revisions})
    waited, ahead = kept
    assert list(waited) == list(ahead) == [0, 30, 60]
    for point, weights in waited.items():
        for name, tensor in weights.items():
            torch.testing.assert_close(ahead[point][name], tensor, rtol=1e-6, atol=1e-9)


def test_the_average_is_that_of_a_host_that_waits() -> None:
    averages = []
    for make in (toy_trainer, _ahead):
        learner = ToyLearner()
        average = Average(list(learner.parameters()), ExponentialAverage(0.5))
        make(learner, average=average, log_every=5).train()
        averages.append(average.tensors)
    for one, other in zip(*averages, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


#: When the host waits for the device before it updates, and why it may.
WAITS = {
    # Overflows are common in float16, and the scale of the next loss depends on them. Newer GPUs use bfloat16.
    "a loss scale": {"scaler": LossScale()},
    # An optimiser of the user's knows nothing of steps that it must skip.
    "LAMB": {"optimizer": Lamb},
    "Adagrad": {"optimizer": Adagrad},
}


@pytest.mark.parametrize("why", [None, "Muon", *WAITS])
def test_when_the_host_waits(why: str | None) -> None:
    settings = WAITS.get(why or "", {"optimizer": Muon} if why else {})
    learner = ToyLearner(dtype=torch.float32)
    precision = Precision()
    precision.scaler = settings.get("scaler")
    trainer = _ahead(learner, optimizer=settings.get("optimizer", AdamW)(learner=learner), precision=precision)
    assert trainer.updater._waits() is (why in WAITS)
