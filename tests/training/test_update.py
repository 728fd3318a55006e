"""Accumulated micro-batches are one large batch, whatever they count."""

from __future__ import annotations

import pytest
import torch
from fakes.training import FindsLarge, ToyBatch, ToyLearner, rows

from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.learner import Step
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.precision import Precision
from lmtransfer.training.update import Updater


class _KeepGradients(Optimizer):
    """Keeps the gradients it is given, and updates nothing."""

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
    """Gradients of the plain mean losses, by hand."""
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
