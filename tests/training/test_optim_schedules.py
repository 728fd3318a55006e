"""Schedules match their closed forms; budgets match arithmetic by hand."""

from __future__ import annotations

import math

import pytest
import torch
from fakes.training import FakeClock, Recorder, ToyLearner, toy_trainer
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.training.budget import Budget
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.training.optim.schedules import (
    Constant,
    Cosine,
    Factor,
    InverseSqrt,
    Linear,
    PartOfBudget,
    WarmupStableDecay,
)


def _factors(schedule: Factor, steps: int, *, start: int = 0) -> list[float]:
    """Return the factor of each update in a budget of steps; the schedule starts after ``start`` updates."""
    budget = Budget(steps=steps)
    found = []
    for step in range(steps):
        fraction = budget.fraction(steps=step, tokens=0, seconds=0.0)
        after = budget.fraction_after(fraction, step, tokens=0, seconds=0.0)
        found.append(schedule(step=step - start, fraction=fraction, fraction_after=after))
    return found


def test_linear_without_warmup_falls_by_one_nth_a_step() -> None:
    assert _factors(Linear(), 8) == pytest.approx([1 - k / 8 for k in range(8)])


def test_linear_with_warmup_is_the_product_of_both() -> None:
    expected = [min(1, (k + 1) / 4) * (1 - k / 10) for k in range(10)]
    assert _factors(Linear(warmup_steps=4), 10) == pytest.approx(expected)


def test_warmup_fraction_is_the_same_warmup_in_shares() -> None:
    assert _factors(Linear(warmup_fraction=0.25), 16) == pytest.approx(_factors(Linear(warmup_steps=4), 16))


def test_warmup_steps_win_over_the_fraction() -> None:
    both = Linear(warmup_steps=2, warmup_fraction=0.5)
    assert _factors(both, 10) == pytest.approx(_factors(Linear(warmup_steps=2), 10))
    assert _factors(Linear(warmup_steps=0, warmup_fraction=0.5), 10) == pytest.approx(_factors(Linear(), 10))


def test_cosine() -> None:
    assert _factors(Cosine(), 9) == pytest.approx([(1 + math.cos(math.pi * k / 9)) / 2 for k in range(9)])


def test_constant_stays_and_final_factor_is_a_floor() -> None:
    assert _factors(Constant(), 3) == [1.0, 1.0, 1.0]
    assert _factors(Linear(final_factor=0.1), 10) == pytest.approx([0.1 + 0.9 * (1 - k / 10) for k in range(10)])


def test_warmup_stable_decay() -> None:
    found = _factors(WarmupStableDecay(decay_fraction=0.5, warmup_steps=2), 10)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_inverse_sqrt_peaks_at_the_end_of_its_warmup() -> None:
    found = _factors(InverseSqrt(warmup_steps=4), 16)
    assert found[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert found[15] == pytest.approx(math.sqrt(4 / 16))


def test_a_schedule_of_a_part_is_that_of_a_budget_of_its_own() -> None:
    made = Linear(warmup_steps=3), Cosine(), WarmupStableDecay(decay_fraction=0.5, warmup_steps=2), InverseSqrt()
    for schedule in made:
        assert _factors(PartOfBudget(schedule), 12) == _factors(schedule, 12)
        part = PartOfBudget(schedule, begins=0.25, ends=0.75)
        assert _factors(part, 12, start=3)[3:9] == pytest.approx(_factors(schedule, 6))


def _trained(budget: Budget, **settings) -> list[dict]:
    learner, recorder = ToyLearner(), Recorder()
    toy_trainer(
        learner,
        budget=budget,
        optimizer=AdamW(learner=learner, learning_rate=0.5),
        trackers=[recorder],
        **settings,
    ).train()
    return recorder.records


@pytest.mark.parametrize(
    ("epochs", "steps_per_epoch", "planned"), [(2, 5, 10), (2.5, 3, 8), (0.1, 5, 1), (1, 7, 7), (1.1, 10, 11)]
)
def test_planned_steps_are_never_floor_divided(epochs: float, steps_per_epoch: int, planned: int) -> None:
    records = _trained(Budget(epochs=epochs, steps_per_epoch=steps_per_epoch))
    assert [record["step"] for record in records] == list(range(1, planned + 1))
    assert records[-1]["learning_rate"] == pytest.approx(0.5 / planned)


def test_a_budget_in_tokens_ends_with_the_step_that_reaches_it() -> None:
    records = _trained(Budget(tokens=30))
    assert records[-1]["tokens"] >= 30 > records[-2]["tokens"]
    assert records[-1]["learning_rate"] == pytest.approx(0.5 * (1 - records[-2]["tokens"] / 30))


def test_a_budget_in_seconds_follows_the_clock_and_logs_every_share() -> None:
    records = _trained(Budget(seconds=40), clock=FakeClock(tick=1.0), log_every=4)
    shares = [share for record in records for share in record["shares_used"]]
    assert len(shares) == records[-1]["step"]
    assert shares[0] == 0
    assert all(later > earlier for earlier, later in zip(shares, shares[1:], strict=False))
    assert records[-1]["seconds"] >= 40
    assert records[-1]["learning_rate"] == pytest.approx(0.5 * (1 - shares[-1]))


def test_the_warm_up_of_a_budget_in_tokens_begins_with_the_first_updates_share() -> None:
    records = _trained(Budget(tokens=1000), schedule=Linear(warmup_fraction=0.5))
    tokens = {record["step"]: record["tokens"] for record in records}
    for record in records:
        step, before = record["step"], tokens.get(record["step"] - 1, 0)
        after = before * step / (step - 1) if before else tokens[1]  # one more update, like the mean of those so far
        expected = min(1.0, after / 500) * (1 - before / 1000)
        assert record["learning_rate"] == pytest.approx(0.5 * expected)
    assert records[0]["learning_rate"] > 0


def test_the_warm_up_of_a_budget_in_seconds_begins_with_the_first_updates_time() -> None:
    learner, clock = ToyLearner(), FakeClock(tick=1.0)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    seen: list[dict] = []
    trainer = toy_trainer(
        learner,
        budget=Budget(seconds=400),
        optimizer=AdamW(learner=learner, learning_rate=0.5),
        schedule=Linear(warmup_fraction=0.5),
        clock=clock,
    )
    read, moved = trainer._read, []

    def watched() -> None:
        read()
        if not moved:
            moved.append(any(not torch.equal(before[n], t) for n, t in learner.state_dict().items()))
        seen.append(dict(trainer.state.record))

    trainer._read = watched  # type: ignore[method-assign]
    trainer.train()
    first = seen[0]["learning_rate"]
    assert 0.5 * 0.5 / 200 < first <= 0.5 * seen[0]["seconds"] / 200  # its own time, without the optimizer's
    assert moved == [True]
    assert seen[1]["learning_rate"] == pytest.approx(
        0.5 * (2 * seen[0]["seconds"] / 200) * (1 - seen[0]["seconds"] / 400)
    )


def test_the_first_of_two_budgets_ends_training() -> None:
    assert len(_trained(Budget(steps=3, tokens=10**9))) == 3
    assert len(_trained(Budget(epochs=1, steps=100, steps_per_epoch=4))) == 4


def test_no_budget_is_refused() -> None:
    with refuses(ConfigError, "train.steps", "train.tokens", "train.epochs", "train.seconds"):
        Budget()


@pytest.mark.parametrize(
    ("epochs", "min_steps", "steps", "lengthening"), [(2.5, None, 8, 1), (2.5, 8, 8, 1), (2.5, 20, 20, 2.5)]
)
def test_a_budget_in_epochs_is_stretched_to_so_many_steps(
    epochs: float, min_steps: int | None, steps: int, lengthening: float
) -> None:
    budget = Budget(epochs=epochs, min_steps=min_steps, steps_per_epoch=3)
    assert (budget.steps, budget.lengthening) == (steps, lengthening)
    assert len(_trained(budget)) == steps
