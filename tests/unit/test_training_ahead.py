"""A device that works beside the host: the host launches step k + 1 before it reads the numbers of step k.

The CPU plays that device, so that both ways can be compared: records, weights, saved states.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import Recorder, ToyBatch, ToyLearner, ToyStream, same, toy_trainer, weights_of
from safetensors.torch import load_file

from lmtransfer.errors import Interrupted
from lmtransfer.training import loop
from lmtransfer.training.averaging import Average, Exponential
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.learner import Loss
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import AdamW, Lamb
from lmtransfer.training.optim.schedules import Constant, Linear
from lmtransfer.training.precision import LossScale, Precision
from lmtransfer.training.update import Launched


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


@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
@pytest.mark.parametrize("stream", [ToyStream, _Bad])
def test_records_and_weights_are_those_of_a_host_that_waits(
    stream: type[ToyStream], max_grad_norm: float | None
) -> None:
    learners, records = (ToyLearner(), ToyLearner()), (Recorder(), Recorder())
    for learner, recorder, make in zip(learners, records, (toy_trainer, _ahead), strict=True):
        make(
            learner,
            stream=stream(),
            schedule=Constant(),
            trackers=[recorder],
            max_grad_norm=max_grad_norm,
            evaluate=lambda learner=learner: {"loss": sum(p.sum().item() for p in learner.parameters())},
            eval_every=4,
        ).train()
    waited, ahead = (_plain_numbers(recorder.records) for recorder in records)
    assert [one["step"] for one in ahead] == list(range(1, 11 if stream is ToyStream else 12))
    assert ahead[-1]["skipped"] == (stream is _Bad)
    for one, other in zip(waited, ahead, strict=True):
        assert other == pytest.approx(one, rel=1e-6, nan_ok=True)
    for name, tensor in weights_of(learners[0]).items():
        torch.testing.assert_close(weights_of(learners[1])[name], tensor, rtol=1e-6, atol=1e-9)


def test_a_skipped_step_shifts_no_rates_but_of_the_step_that_had_begun() -> None:
    rates = []
    for make in (toy_trainer, _ahead):
        recorder = Recorder()
        make(ToyLearner(), stream=_Bad(), schedule=Linear(), trackers=[recorder]).train()
        rates.append([one["learning_rate"] for one in recorder.records])
    waited, ahead = rates
    assert len(set(waited)) == 10  # of 11 steps: one is made again at the same rate
    assert len(ahead) == 11
    assert [ahead[step] == pytest.approx(waited[step]) for step in range(11)] == [step != 5 for step in range(11)]


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    learner = ToyLearner()
    trainer = _ahead(learner, stream=_Bad(), schedule=Constant())
    launch, weights = trainer.updater.launch, []

    def launched(*arguments: Any, **settings: Any) -> Launched:
        weights.append(weights_of(learner))
        return launch(*arguments, **settings)

    trainer.updater.launch = launched  # type: ignore[method-assign]
    trainer.train()
    unchanged = [same(before, after) for before, after in zip(weights, weights[1:], strict=False)]
    assert unchanged == [step == 4 for step in range(len(unchanged))]
    ages = {float(value) for key, value in trainer.optimizer.state_dict().items() if key.endswith("/step")}
    assert ages == {10.0}


def test_the_host_reads_a_step_after_it_launched_the_next() -> None:
    events: list[str] = []
    trainer = _ahead(ToyLearner(), save_every=6, budget=Budget(steps=8))
    launch = trainer.updater.launch

    def launched(step: Any, **settings: Any) -> Launched:
        made, number = launch(step, **settings), step.number
        events.append(f"launch {number}")

        def outcome() -> Any:
            events.append(f"read {number}")
            return made.outcome()

        return Launched(made.tokens, outcome, is_ahead=made.is_ahead)

    trainer.updater.launch = launched  # type: ignore[method-assign]
    trainer.train()
    order = "launch 0, read 0, launch 1, launch 2, read 1, launch 3, read 2, launch 4, read 3, launch 5, read 4, read 5"
    assert ", ".join(events) == order + ", launch 6, launch 7, read 6, read 7"


@pytest.mark.parametrize("stop_at", [3, 5])
def test_a_stop_saves_the_weights_of_the_step_that_it_names(
    stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ToyLearner()
    _ahead(whole).train()
    stopped = _ahead(ToyLearner(), checkpoints=Checkpoints(tmp_path))
    with monkeypatch.context() as patch:
        for module, asked in ((loop, "agreed_stop"), (loop, "agreed_stop"), (loop, "stop_requested")):
            patch.setattr(module, asked, lambda: "SIGTERM" if stopped.state.step >= stop_at else None)
        with pytest.raises(Interrupted):
            stopped.train()
    resumed = ToyLearner()
    trainer = _ahead(resumed, checkpoints=Checkpoints(tmp_path))
    trainer.resume()
    assert stop_at <= trainer.state.step <= stop_at + 1
    trainer.train()
    assert same(weights_of(whole), weights_of(resumed))


def test_a_revision_has_the_weights_of_the_step_that_reached_it(tmp_path: Path) -> None:
    kept = []
    for name, make in (("waited", toy_trainer), ("ahead", _ahead)):
        checkpoints = Checkpoints(tmp_path / name)
        make(ToyLearner(), checkpoints=checkpoints, save_at=(0, 30, 60)).train()
        revisions = checkpoints.revisions().items()
        kept.append({point: load_file(folder / "model.safetensors") for point, folder in revisions})
    waited, ahead = kept
    assert list(waited) == list(ahead) == [0, 30, 60]
    for point, weights in waited.items():
        for name, tensor in weights.items():
            torch.testing.assert_close(ahead[point][name], tensor, rtol=1e-6, atol=1e-9)


#: When the host waits for the device before it updates, and why it may.
WAITS = {
    # A recurrent state of a pass that is not finite must be dropped, and its tensors may change their shape.
    "a recurrent state": {"learner": "recurrent"},
    # Overflows are common in float16, and the scale of the next loss depends on them. Newer GPUs use bfloat16.
    "a loss scale": {"scaler": LossScale()},
    # Only the fused kernels of PyTorch's AdamW can skip an update by themselves.
    "another optimiser": {"optimizer": Lamb},
}


class _Recurrent(ToyLearner):
    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        losses, _ = super().losses(batch)
        return losses, torch.zeros(len(batch.x))


@pytest.mark.parametrize("why", [None, *WAITS])
def test_when_the_host_waits(why: str | None) -> None:
    settings = WAITS.get(why or "", {})
    learner = (_Recurrent if "learner" in settings else ToyLearner)(dtype=torch.float32)
    precision = Precision()
    precision.scaler = settings.get("scaler")
    trainer = _ahead(learner, optimizer=settings.get("optimizer", AdamW)(learner=learner), precision=precision)
    step = next(trainer.stream.steps())
    assert trainer.updater.launch(step, factor=lambda tokens: 1.0, ahead=True).is_ahead is (why is None)


def test_a_run_with_an_average_of_its_weights_waits() -> None:
    """The average takes in the weights after each step, before the next step changes them."""
    learner = ToyLearner()
    optimizer = AdamW(learner=learner)
    trainer = _ahead(learner, optimizer=optimizer, average=Average(optimizer.parameters, Exponential(0.9)))
    launch, ahead = trainer.updater.launch, []

    def launched(*arguments: Any, **settings: Any) -> Launched:
        ahead.append(settings["ahead"])
        return launch(*arguments, **settings)

    trainer.updater.launch = launched  # type: ignore[method-assign]
    trainer.train()
    assert not any(ahead)
