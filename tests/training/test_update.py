"""Accumulated micro-batches are equivalent to one large batch, whatever their losses count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.training import FindsLarge, Recorder, ToyBatch, ToyLearner, ToyStream, rows, same, toy_trainer, weights_of
from safetensors.torch import load_file
from support.refusals import refuses

from lmtransfer.errors import Interrupted
from lmtransfer.training import loop
from lmtransfer.training.averaging import Average, ExponentialAverage
from lmtransfer.training.budget import Budget
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.learner import Loss, Step
from lmtransfer.training.loop import Trainer
from lmtransfer.training.optim.optimizers import Adagrad, AdamW, Lamb, Muon, Optimizer
from lmtransfer.training.optim.schedules import Linear
from lmtransfer.training.precision import LossScale, Precision
from lmtransfer.training.recurrent_state import detach, flatten, unflatten
from lmtransfer.training.update import PendingStep, Updater


class _KeepGradients(Optimizer):
    """An optimizer that records its gradients and updates nothing."""

    def __init__(self, learner: ToyLearner) -> None:
        super().__init__(learner, [torch.optim.SGD(learner.parameters(), lr=0.0)])
        self.kept: list[torch.Tensor] = []

    def step(self, *, skip: torch.Tensor | None = None) -> None:
        self.kept = [p.grad.clone() for p in self.parameters if p.grad is not None]


def _updater(learner: ToyLearner, *, seed: int = 0, max_grad_norm: float | None = None) -> Updater:
    optimizer = _KeepGradients(learner)
    return Updater(
        learner=learner,
        optimizer=optimizer,
        seed=seed,
        device="cpu",
        precision=Precision(),
        max_grad_norm=max_grad_norm,
    )


def _gradients(micro_batches: list[ToyBatch], *, max_grad_norm: float | None = None) -> list[torch.Tensor]:
    updater = _updater(ToyLearner(), max_grad_norm=max_grad_norm)
    updater.step(Step(number=0, epoch=0.1, micro_batches=micro_batches), factor=lambda tokens: 1.0)
    return updater.optimizer.kept  # type: ignore[attr-defined]


def _reference(batch: ToyBatch) -> list[torch.Tensor]:
    """Compute the gradients of the plain mean losses by hand."""
    learner = ToyLearner()
    error = (learner.out(learner.norm(torch.tanh(learner.layers[0](batch.x)))).squeeze(-1) - batch.y) ** 2
    (error.mean() + 0.5 * error[batch.mask].mean()).backward()
    return [p.grad for p in learner.parameters()]


@pytest.mark.parametrize("cuts", [[16], [4, 4, 4, 4], [1] * 16, [7, 2, 6, 1]])
def test_16_rows_in_any_cut_give_the_gradients_of_one_batch(cuts: list[int]) -> None:
    batch = rows(5, 16)
    parts, start = [], 0
    for size in cuts:
        parts.append(batch.rows(range(start, start + size)))
        start += size
    counts = {int(part.mask.sum()) for part in parts}
    assert len(cuts) == 1 or len(counts) > 1, "the masked counts must be ragged for this test to mean anything"
    for found, expected in zip(_gradients(parts), _reference(batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_a_micro_batch_that_counts_nothing_changes_nothing() -> None:
    batch = rows(5, 8)
    empty = ToyBatch(batch.x[:3], batch.y[:3], torch.zeros(3, dtype=torch.bool), batch.keys[:3])
    assert all(torch.isfinite(g).all() for g in _gradients([empty]))


def test_seven_micro_batches_four_a_step_leave_three_in_the_last_update() -> None:
    micro_batches = [rows(n, 2 + n) for n in range(7)]
    steps = [micro_batches[:4], micro_batches[4:]]
    for part in steps:
        whole = ToyBatch(
            torch.cat([b.x for b in part]),
            torch.cat([b.y for b in part]),
            torch.cat([b.mask for b in part]),
            [key for b in part for key in b.keys],
        )
        for found, expected in zip(_gradients(part), _reference(whole), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_clipping_scales_the_whole_gradient_and_only_when_it_is_too_long() -> None:
    batch = [rows(5, 16)]
    free = _gradients(batch)
    norm = torch.stack([g.pow(2).sum() for g in free]).sum().sqrt()
    clipped = _gradients(batch, max_grad_norm=float(norm) / 2)
    for found, expected in zip(clipped, free, strict=True):
        torch.testing.assert_close(found, expected / 2)
    for found, expected in zip(_gradients(batch, max_grad_norm=float(norm) * 2), free, strict=True):
        assert torch.equal(found, expected)


def test_dropout_is_seeded_by_the_number_of_the_micro_batch_alone() -> None:
    def losses(*, first: int, num: int, disturb: int) -> list[float]:
        updater = _updater(ToyLearner(dropout=0.5), seed=7)
        torch.manual_seed(disturb)
        found = []
        for number in range(first, first + num):
            step = Step(number=number, epoch=0.1, micro_batches=[rows(1, 8)], first_micro_batch=number)
            found.append(updater.step(step, factor=lambda tokens: 1.0).loss)
        return found

    from_start = losses(first=0, num=4, disturb=1)
    assert len(set(from_start)) == 4, "each micro-batch has its own mask"
    assert losses(first=2, num=2, disturb=99) == from_start[2:]


def test_a_loss_that_counted_nothing_in_a_step_is_not_reported_as_zero() -> None:
    batch = rows(5, 8)
    empty = ToyBatch(batch.x, batch.y, torch.zeros(8, dtype=torch.bool), batch.keys)
    updater = _updater(ToyLearner())
    outcome = updater.step(Step(number=0, epoch=0.1, micro_batches=[empty]), factor=lambda tokens: 1.0)
    assert set(outcome.losses) == {"square"}
    assert outcome.loss == outcome.losses["square"]


@pytest.mark.parametrize("limit", [1.0, 1e9])
def test_a_metric_may_count_what_the_pass_finds(limit: float) -> None:
    learner = FindsLarge()
    learner.limit = limit
    batches = [rows(seed, size) for seed, size in ((1, 3), (2, 9), (3, 1))]
    errors = torch.cat([learner.errors(batch) for batch in batches])
    wanted = {"large": errors[errors > limit].mean().item()} if (errors > limit).any() else {}
    assert bool(wanted) == (limit == 1.0)
    updater = _updater(learner)
    trained = updater.step(Step(number=0, epoch=0.1, micro_batches=batches), factor=lambda tokens: 1.0).losses
    for found in (trained, evaluate_losses(learner, batches)):
        assert {name: found[name] for name in found if name == "large"} == pytest.approx(wanted)
        assert {"square", "masked"} <= set(found)


def test_a_recurrent_state_comes_back_as_it_was() -> None:
    recurrent_state = {
        "lstm": (torch.ones(2, requires_grad=True), [None, torch.zeros(1)]),
        "age": 3,
        "on": True,
        "name": "x",
    }
    tensors, structure = flatten(recurrent_state)
    back = unflatten(tensors, json.loads(json.dumps(structure)))
    assert torch.equal(back["lstm"][0], recurrent_state["lstm"][0])
    assert isinstance(back["lstm"], tuple)
    assert isinstance(back["lstm"][1], list)
    assert (back["lstm"][1][0], back["age"], back["on"], back["name"]) == (None, 3, True, "x")
    assert not detach(recurrent_state)["lstm"][0].requires_grad
    with refuses(TypeError, "<class 'object'>"):
        flatten({"thing": object()})


# The CPU simulates an asynchronous device: the host reads the results of steps when it logs.


def _ahead(learner: ToyLearner, **settings: Any) -> Trainer:
    trainer = toy_trainer(learner, **settings)
    trainer.updater.asynchronous = True
    return trainer


def _plain_numbers(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without entries that depend on the clock."""
    return [{k: v for k, v in one.items() if k not in ("seconds", "tokens_per_second")} for one in records]


class _Bad(ToyStream):
    """A learner with non-finite targets in micro-batch 9, which is in step 4."""

    def micro_batch(self, number: int) -> ToyBatch:
        batch = super().micro_batch(number)
        return ToyBatch(batch.x, batch.y * float("nan"), batch.mask, batch.keys) if number == 9 else batch


class _Recurrent(ToyLearner):
    """A learner whose recurrent state, a tensor of the earlier rows, enters the loss."""

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


#: The cases in which the host waits for the device before it updates, and the reasons.
WAITS = {
    # Overflows are common in float16, and the next loss scale depends on them. Newer GPUs use bfloat16.
    "a loss scale": {"scaler": LossScale()},
    # A user's own optimizer does not know about steps to skip.
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
