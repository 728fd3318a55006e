"""The training loop: its log, when it evaluates, saves and stops, and how it handles non-finite losses."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import Recorder, ToyBatch, ToyLearner, ToyStream, rows, same, toy_trainer, weights_of
from support.refusals import refuses
from torch import nn

from lmtransfer.errors import CheckpointError, Interrupted, TrainingError
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback, UnigramPlateau
from lmtransfer.training.checkpoints import Checkpoints, TrainState
from lmtransfer.training.evaluation import ModelSelection, evaluate_losses
from lmtransfer.training.learner import Learner, Loss, Step
from lmtransfer.training.precision import LossScale, Precision


def test_records_hold_what_people_script_against() -> None:
    recorder = Recorder()
    toy_trainer(trackers=[recorder], log_every=4).train()
    assert [record["step"] for record in recorder.records] == [4, 8, 10], "every fourth, and the last"
    for record in recorder.records:
        assert {"step", "tokens", "seconds", "loss", "learning_rate", "tokens_per_second"} <= record.keys()
    tokens = sum(ToyStream().micro_batch(n).num_tokens for n in range(20))
    assert recorder.records[-1]["tokens"] == tokens


def test_the_loss_is_logged_by_part_as_sum_over_count_before_the_update() -> None:
    recorder = Recorder()
    learner = ToyLearner()
    batches = ToyStream().micro_batch(0), ToyStream().micro_batch(1)
    with torch.no_grad():
        losses = [learner.losses(batch)[0] for batch in batches]
    expected = {
        name: sum(float(part[name].sum) for part in losses) / sum(part[name].count for part in losses)
        for name in ("square", "masked")
    }
    toy_trainer(learner, trackers=[recorder], budget=Budget(steps=1)).train()
    (record,) = recorder.records
    assert record["loss/square"] == pytest.approx(expected["square"], rel=1e-12)
    assert record["loss/masked"] == pytest.approx(expected["masked"], rel=1e-12)
    assert record["loss"] == pytest.approx(expected["square"] + 0.5 * expected["masked"], rel=1e-12)


def test_after_one_step_every_trainable_parameter_has_moved() -> None:
    learner = ToyLearner()
    before = weights_of(learner)
    toy_trainer(learner, budget=Budget(steps=1)).train()
    assert all(not torch.equal(before[name], value) for name, value in weights_of(learner).items())


class _Scripted:
    """Evaluations with predefined values; records the step after which each happens."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)
        self.trainer: Any = None
        self.steps: list[int] = []

    def __call__(self) -> dict[str, float]:
        self.steps.append(self.trainer.state.step)
        return {"score": self.values[len(self.steps) - 1]}


def _scripted_run(tmp_path: Path, values: list[float], **settings: Any) -> tuple[Any, _Scripted]:
    evaluate = _Scripted(*values)
    trainer = toy_trainer(evaluate=evaluate, checkpoints=Checkpoints(tmp_path), eval_every=2, **settings)
    evaluate.trainer = trainer
    return trainer, evaluate


def _state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


@pytest.mark.parametrize(("higher_is_better", "best_step"), [(True, 4), (False, 8)])
def test_best_and_last_are_apart_and_the_metric_has_a_direction(
    higher_is_better: bool, best_step: int, tmp_path: Path
) -> None:
    trainer, evaluate = _scripted_run(
        tmp_path,
        [0.5, 0.9, 0.6, 0.1, 0.3],
        selection=ModelSelection(metric="score", higher_is_better=higher_is_better),
    )
    state = trainer.train()
    assert evaluate.steps == [2, 4, 6, 8, 10]
    assert _state(tmp_path / "best")["step"] == best_step == state.best_step
    assert _state(tmp_path / "last")["step"] == 10
    assert state.best_metrics == {"score": state.best}
    assert state.metrics == {"score": 0.3}


def test_a_nan_is_never_the_best(tmp_path: Path) -> None:
    selection = ModelSelection(metric="score", higher_is_better=False)
    trainer, _ = _scripted_run(tmp_path, [float("nan"), 0.9, float("nan"), 0.8, float("nan")], selection=selection)
    assert trainer.train().best == 0.8


def test_a_run_begun_with_another_metric_is_compared_by_this_one() -> None:
    state = TrainState(step=4, best=34.0, best_step=2, best_metrics={"loss": 34.0, "rtd": 0.3})
    selection = ModelSelection(metric="rtd")
    assert not selection.observe({"loss": 20.0, "rtd": 0.4}, state)
    assert selection.observe({"loss": 40.0, "rtd": 0.2}, state)
    assert (state.best, state.best_step) == (0.2, 4)


def test_patience_stops_after_evaluations_without_a_better_one(tmp_path: Path) -> None:
    selection = ModelSelection(metric="score", higher_is_better=True, patience=2)
    trainer, evaluate = _scripted_run(tmp_path, [0.5, 0.6, 0.6, 0.1, 0.9], selection=selection)
    state = trainer.train()
    assert evaluate.steps == [2, 4, 6, 8]
    assert state.finished == "patience"
    assert _state(tmp_path / "last")["step"] == 8
    assert _state(tmp_path / "best")["step"] == 4


def test_a_metric_that_is_not_evaluated_is_an_error(tmp_path: Path) -> None:
    trainer, _ = _scripted_run(tmp_path, [0.5], selection=ModelSelection(metric="f1"))
    with refuses(TrainingError, "'f1'", "score"):
        trainer.train()


def test_without_eval_every_there_is_one_evaluation_at_the_end() -> None:
    evaluate = _Scripted(0.5)
    recorder = Recorder()
    evaluate.trainer = toy_trainer(evaluate=evaluate, trackers=[recorder], log_every=100)
    evaluate.trainer.train()
    assert evaluate.steps == [10]
    assert recorder.records[-1]["validation/score"] == 0.5


@pytest.mark.parametrize("size", [1, 7, 64])
def test_evaluation_does_not_depend_on_the_batch_size(size: int) -> None:
    everything = rows(11, 64)
    learner = ToyLearner(dropout=0.5)
    whole = evaluate_losses(learner, [everything])
    parts = [everything.rows(range(start, min(start + size, 64))) for start in range(0, 64, size)]
    assert evaluate_losses(learner, parts) == pytest.approx(whole, rel=1e-12)
    assert set(whole) == {"loss", "square", "masked"}
    assert learner.training, "the mode is restored"


class _Carried(Learner):
    """A learner whose loss is its recurrent state: the number of earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def counts(self, batch: ToyBatch) -> dict[str, int]:
        return {"age": 1}

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        age = torch.zeros(()) if recurrent_state is None else recurrent_state["age"][0]
        return {"age": Loss(self.weight * 0 + age, 1)}, {"age": (age + 1 + 0 * self.weight, None)}


def test_a_carry_belongs_to_a_place_in_the_step_and_evaluation_has_its_own() -> None:
    recorder, learner = Recorder(), _Carried()
    batches = [rows(1, 2)] * 3

    def evaluate() -> dict[str, float]:
        return evaluate_losses(learner, batches)

    toy_trainer(learner, trackers=[recorder], evaluate=evaluate, eval_every=2, budget=Budget(steps=4)).train()
    assert [record["loss"] for record in recorder.records] == [0, 1, 2, 3], "both micro-batches have the same age"
    evaluated = [record["validation/loss"] for record in recorder.records if "validation/loss" in record]
    assert evaluated == [1, 1], "(0 + 1 + 2) / 3, from an empty carry each time"


def test_a_carry_is_saved_and_restored(tmp_path: Path) -> None:
    def losses(steps: int, *, resume: bool) -> list[float]:
        recorder, learner = Recorder(), _Carried()
        trainer = toy_trainer(
            learner, trackers=[recorder], checkpoints=Checkpoints(tmp_path), budget=Budget(steps=steps)
        )
        if resume:
            trainer.resume()
        trainer.train()
        return [record["loss"] for record in recorder.records]

    assert losses(3, resume=False) == [0, 1, 2]
    assert losses(5, resume=True) == [3, 4]


class _Sick(ToyLearner):
    """A learner whose loss is not finite on micro-batches with the given first keys."""

    def __init__(self, bad: set[str], value: float = float("nan")) -> None:
        super().__init__()
        self.bad, self.value = bad, value

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        losses, recurrent_state = super().losses(batch, recurrent_state)
        if batch.keys[0] in self.bad:
            losses["square"] = Loss(losses["square"].sum * self.value, losses["square"].count)
        return losses, recurrent_state


class _Notes:
    """A progress line that records the messages."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, *arguments: Any, **named: Any) -> None: ...

    def __enter__(self) -> _Notes:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_shown_with_its_keys_and_skipped(value: float) -> None:
    learner, notes, recorder = _Sick({"4.0"}, value), _Notes(), Recorder()
    trainer = toy_trainer(learner, progress=notes, trackers=[recorder], budget=Budget(steps=6))
    held: dict[int, Any] = {}

    class Watch(Callback):
        name = "watch"

        def on_step_end(self, outcome: Any, record: Any, *, fraction: float) -> tuple[str, ...]:
            held[record["step"]] = (weights_of(learner), outcome.updated, fraction)
            return ()

    trainer.callbacks.append(Watch())
    state = trainer.train()
    assert state.skipped == 1
    assert state.step == 6
    assert not held[3][1], "micro-batch 4 is in the third step"
    assert same(held[2][0], held[3][0])
    (note,) = notes.notes
    assert "step 3" in note
    assert "4.0" in note
    assert "5.0" not in note, "the other micro-batch of the step is well"
    rates = [record["learning_rate"] for record in recorder.records]
    assert len(set(rates)) == 6, "the schedule goes on"
    assert rates[-1] == pytest.approx(0.05 / 6)


def test_training_gives_up_after_three_in_a_row(tmp_path: Path) -> None:
    learner = _Sick({f"{n}.0" for n in range(4, 100)})
    notes = _Notes()
    trainer = toy_trainer(learner, progress=notes, checkpoints=Checkpoints(tmp_path), save_every=1)
    with refuses(TrainingError, "step 5", "3 steps", "optimizer.learning_rate"):
        trainer.train()
    assert len(notes.notes) == 2
    assert Checkpoints(tmp_path).find_newest()[0].step == 4


def test_two_bad_steps_between_good_ones_are_survived() -> None:
    state = toy_trainer(_Sick({"2.0", "4.0", "8.0", "10.0"})).train()
    assert state.skipped == 4
    assert state.finished == "budget"


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is() -> None:
    class Root(ToyLearner):
        def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
            losses, recurrent_state = super().losses(batch, recurrent_state)
            if batch.keys[0] == "2.0":
                square = losses["square"]
                losses["square"] = Loss(square.sum + (square.sum * 0).sqrt(), square.count)
            return losses, recurrent_state

    learner, notes = Root(), _Notes()
    state = toy_trainer(learner, progress=notes).train()
    assert state.skipped == 1
    assert "gradient" in notes.notes[0]
    assert all(torch.isfinite(value).all() for value in weights_of(learner).values())


def _fp16(scale: float) -> Precision:
    """The loss scale of float16 with float64 arithmetic, to test it without a GPU."""
    precision = Precision(name="fp32")
    precision.scaler = LossScale(init_scale=scale, growth_interval=3)
    return precision


def test_a_loss_scale_changes_nothing_but_the_scale() -> None:
    plain, scaled = ToyLearner(), ToyLearner()
    toy_trainer(plain, max_grad_norm=0.5).train()
    precision = _fp16(2.0**10)
    toy_trainer(scaled, max_grad_norm=0.5, precision=precision).train()
    for name, value in weights_of(plain).items():
        torch.testing.assert_close(weights_of(scaled)[name], value, rtol=1e-9, atol=1e-12)
    assert precision.scale == 2.0**13, "doubled after every three good steps of ten"


def test_an_overflow_does_not_change_the_weights() -> None:
    learner, recorder, notes = ToyLearner(dtype=torch.float32), Recorder(), _Notes()
    precision = _fp16(2.0**127)
    snapshots = []
    trainer = toy_trainer(learner, precision=precision, trackers=[recorder], progress=notes, budget=Budget(steps=3))
    original = trainer.updater.launch_step

    def make(*arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        snapshots.append((next(trainer.updater.read([made])), weights_of(learner)))
        return made

    trainer.updater.launch_step = make  # type: ignore[method-assign]
    before = weights_of(learner)
    state = trainer.train()
    overflows = [outcome for outcome, _ in snapshots if outcome.overflowed]
    assert len(overflows) == state.skipped > 0
    assert snapshots[0][0].overflowed
    assert same(before, snapshots[0][1])
    assert state.step == 3
    assert [record["skipped"] for record in recorder.records] == [1, 2, 3][: state.skipped] + [state.skipped] * (
        3 - state.skipped
    )
    assert "float16" in notes.notes[0]


def test_the_loss_scale_is_saved(tmp_path: Path) -> None:
    precision = _fp16(2.0**5)
    toy_trainer(precision=precision, checkpoints=Checkpoints(tmp_path)).train()
    other = _fp16(1.0)
    resumed = toy_trainer(precision=other, checkpoints=Checkpoints(tmp_path))
    resumed.resume()
    assert other.scaler.state_dict() == precision.scaler.state_dict()
    with refuses(CheckpointError, "float16", "hardware.precision"):
        toy_trainer(checkpoints=Checkpoints(tmp_path)).resume()


def test_an_overflow_without_any_scale_left_ends_training() -> None:
    precision = _fp16(2.0)

    class Huge(ToyLearner):
        def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
            losses, recurrent_state = super().losses(batch, recurrent_state)
            square = losses["square"]
            return {**losses, "square": Loss(square.sum + (square.sum * 0).sqrt(), square.count)}, recurrent_state

    with refuses(TrainingError, "0.5", "hardware.precision=fp32"):
        toy_trainer(Huge(), precision=precision).train()


class _Signals(ToyStream):
    """A stream that sends this process a signal while the data of a step are read."""

    def __init__(self, at: int, number: signal.Signals) -> None:
        super().__init__()
        self.at, self.number = at, number

    def micro_batch(self, number: int) -> ToyBatch:
        if number == self.at:
            os.kill(os.getpid(), self.number)
        return super().micro_batch(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_finishes_the_step_saves_and_says_so(
    number: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:  # as under nohup: training must keep ignoring the signal
        signal.signal(number, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(number, signal.SIG_IGN))
    before = signal.getsignal(number)
    trainer = toy_trainer(stream=_Signals(4, number), checkpoints=Checkpoints(tmp_path))
    with refuses(Interrupted, "resume=true") as caught:
        trainer.train()
    assert caught.value.exit_code == 75
    assert trainer.state.step == 3
    assert Checkpoints(tmp_path).find_newest()[0].step == 3
    assert signal.getsignal(number) == before, "the handlers are restored"
    assert f"{'Ctrl-C' if number == signal.SIGINT else number.name}: " in capfd.readouterr().err


def test_a_second_interrupt_costs_no_step_either(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Twice(_Signals):
        def micro_batch(self, number: int) -> ToyBatch:
            batch = super().micro_batch(number)
            return super().micro_batch(number) if number == self.at else batch

    trainer = toy_trainer(stream=Twice(4, signal.SIGINT), checkpoints=Checkpoints(tmp_path))
    with pytest.raises(Interrupted):
        trainer.train()
    assert trainer.state.step == 3
    assert Checkpoints(tmp_path).find_newest()[0].step == 3
    assert capfd.readouterr().err.count("Ctrl-C: ") == 2


def test_a_signal_in_an_evaluation_stops_it_and_it_comes_first_after_resuming(tmp_path: Path) -> None:
    def trainer_of(recorder: Recorder, *, interrupt: bool) -> Any:
        learner = ToyLearner()

        def batches() -> Any:
            for number in range(4):
                if interrupt and number == 2 and trainer.state.step == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield rows(1000 + number, 5)

        trainer = toy_trainer(
            learner,
            trackers=[recorder],
            log_every=3,
            evaluate=lambda: evaluate_losses(learner, batches()),
            eval_every=4,
            selection=ModelSelection(),
            checkpoints=Checkpoints(tmp_path / str(interrupt)),
        )
        return trainer

    straight = Recorder()
    expected = trainer_of(straight, interrupt=False).train()
    broken = Recorder()
    first = trainer_of(broken, interrupt=True)
    with pytest.raises(Interrupted):
        first.train()
    assert first.state.step == 4
    assert first.state.evaluation_due
    second = trainer_of(broken, interrupt=False)
    second.saver.checkpoints = Checkpoints(tmp_path / "True")
    second.resume()
    state = second.train()
    timing = {"seconds", "tokens_per_second"}
    assert [{k: v for k, v in r.items() if k not in timing} for r in broken.records] == [
        {k: v for k, v in r.items() if k not in timing} for r in straight.records
    ]
    assert (state.best, state.best_step) == (expected.best, expected.best_step)


def test_the_unigram_plateau_is_warned_of_once_and_its_end_is_logged() -> None:
    class Mlm(ToyLearner):
        """A loss that stays at 2 nats for a while and then falls."""

        def __init__(self, fall_at: int) -> None:
            super().__init__()
            self.fall_at, self.seen = fall_at, 0

        def counts(self, batch: ToyBatch) -> dict[str, int]:
            return {"mlm": 1}

        def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
            self.seen += 1
            value = 2.0 if self.seen <= self.fall_at else 1.0
            return {"mlm": Loss(self.out.bias.sum() * 0 + value, 1)}, None

    def run(fall_at: int) -> tuple[list[str], list[dict[str, Any]]]:
        notes, recorder = _Notes(), Recorder()
        toy_trainer(
            Mlm(fall_at),
            stream=ToyStream(per_step=1),
            progress=notes,
            trackers=[recorder],
            budget=Budget(steps=200),
            callbacks=[UnigramPlateau(entropy=2.0)],
        ).train()
        return notes.notes, recorder.records

    notes, records = run(fall_at=10**6)
    assert len(notes) == 1
    assert notes[0].startswith("warning: step 100: ")
    assert "plateau" in notes[0]
    assert not any("plateau_left_at" in record for record in records)

    notes, records = run(fall_at=60)
    assert len(notes) == 1
    assert notes[0].startswith("step 63: ")
    assert "plateau" in notes[0]
    assert [record["step"] for record in records if "plateau_left_at" in record] == list(range(63, 201))
    assert {record.get("plateau_left_at") for record in records} == {None, 63}


def test_a_budget_that_was_raised_goes_on(tmp_path: Path) -> None:
    toy_trainer(budget=Budget(steps=4), checkpoints=Checkpoints(tmp_path)).train()
    same_budget = toy_trainer(budget=Budget(steps=4), checkpoints=Checkpoints(tmp_path))
    same_budget.resume()
    assert same_budget.train().step == 4
    raised = toy_trainer(budget=Budget(steps=6), checkpoints=Checkpoints(tmp_path))
    raised.resume()
    assert raised.train().step == 6


def test_resuming_before_the_first_checkpoint_starts_again_and_says_so(tmp_path: Path) -> None:
    notes, recorder = _Notes(), Recorder()
    recorder.records = [{"step": 3}]
    trainer = toy_trainer(checkpoints=Checkpoints(tmp_path / "none"), progress=notes, trackers=[recorder])
    trainer.resume()
    assert "checkpoint" in notes.notes[0]
    assert recorder.records == []
    assert trainer.train().step == 10


def test_a_torch_optimiser_is_taken_as_it_is() -> None:
    learner = ToyLearner()
    state = toy_trainer(learner, optimizer=torch.optim.SGD(learner.parameters(), lr=0.1)).train()
    assert state.record["learning_rate"] == pytest.approx(0.1 / 10)


class _Shrinking(ToyStream):
    """A stream with three micro-batches per step, which can be cut into smaller ones."""

    def __init__(self) -> None:
        super().__init__(per_step=3)
        self.limit = 10**6

    def steps(self, start: int = 0) -> Iterator[Step]:
        for step in super().steps(start):
            parts = [
                batch.rows(range(first, min(first + self.limit, batch.num_tokens)))
                for batch in step.micro_batches
                for first in range(0, batch.num_tokens, self.limit)
            ]
            yield Step(step.number, step.epoch, tuple(parts), step.first_micro_batch)

    def set_micro_batch_tokens(self, tokens: int) -> None:
        self.limit = tokens


class _Greedy(ToyLearner):
    """Runs out of memory if a micro-batch has too many rows, after part of the step's gradients are computed."""

    error: RuntimeError = torch.OutOfMemoryError("CUDA out of memory")

    def losses(self, batch: ToyBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        if len(batch.x) > 3:
            raise self.error
        return super().losses(batch, recurrent_state)


@pytest.mark.parametrize("error", [_Greedy.error, RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")])
def test_out_of_memory_halves_the_micro_batch_and_changes_nothing_that_is_learnt(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Greedy, "error", error)
    plain, greedy, stream, notes = ToyLearner(), _Greedy(), _Shrinking(), _Notes()
    toy_trainer(plain, stream=_Shrinking()).train()
    state = toy_trainer(greedy, stream=stream, progress=notes).train()
    assert state.step == 10
    for name, value in weights_of(plain).items():
        torch.testing.assert_close(weights_of(greedy)[name], value, rtol=1e-9, atol=1e-12)
    assert stream.limit <= 3
    assert "train.micro_batch_tokens=" in notes.notes[0]


def test_out_of_memory_without_a_way_out_is_one_clear_error() -> None:
    with refuses(TrainingError, "step ", "memory", "train.micro_batch_tokens"):
        toy_trainer(_Greedy()).train()
