"""The messages after the first steps of a run with a budget in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fakes.training import ToyStream, toy_trainer

from lmtransfer.models.bert import BertEncoder
from lmtransfer.pretraining.diagnostics import TABLE, block_weights, meaning
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import TokenForecast, millions
from lmtransfer.training.progress import ProgressLine


class _Clock:
    """A clock on which a step takes half a second, and the first steps much longer, as when kernels are built."""

    def __init__(self) -> None:
        self.looks, self.now = 0, 0.0

    def __call__(self) -> float:
        self.looks += 1
        self.now += 5.0 if self.looks <= 7 else 0.5
        return self.now


class _Notes(ProgressLine):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_tokens_of_a_budget_in_seconds_are_told_from_the_steps_after_the_first() -> None:
    asked: list[tuple[float, float]] = []

    def told(tokens: float, rate: float) -> Sequence[str]:
        asked.append((tokens, rate))
        return ["and so on"]

    notes = _Notes()
    state = toy_trainer(
        stream=ToyStream(per_step=4),
        progress=notes,
        budget=Budget(seconds=400),
        callbacks=[TokenForecast(seconds=400, meaning=told)],
        clock=_Clock(),
    ).train()
    assert len(asked) == 1
    assert len(notes.notes) == 2
    expected, rate = asked[0]
    for name in ("400 s", f"{millions(expected)} tokens", f"{rate:,.0f} tokens/s"):
        assert name in notes.notes[0]
    assert expected == pytest.approx(state.tokens, rel=0.05), "what was foretold is what came"


def test_a_run_that_is_over_before_its_tenth_step_foretells_nothing() -> None:
    notes = _Notes()
    toy_trainer(progress=notes, budget=Budget(seconds=3), callbacks=[TokenForecast(seconds=3)], clock=_Clock()).train()
    assert notes.notes == []


def test_too_few_tokens_are_warned_of_with_the_seconds_that_would_do() -> None:
    measured = TABLE[0]
    (line,) = meaning(0.9 * measured.plateau_tokens, 1000.0, num_weights=measured.num_weights)
    assert line.startswith("warning: ")
    seconds = int(line.split("train.seconds=")[1].rstrip(")"))
    assert 2.5 * measured.plateau_tokens / 1000 <= seconds <= 2.8 * measured.plateau_tokens / 1000


@pytest.mark.parametrize("row", [row for table in TABLE for row in table.budgets])
def test_enough_tokens_are_told_what_they_were_worth(row: object) -> None:
    for table in TABLE:
        for budget in table.budgets:
            if budget is row and budget.tokens >= table.plateau_tokens:
                (line,) = meaning(1.01 * budget.tokens, 1000.0, num_weights=table.num_weights)
                assert f"{budget.points:+.0f} +- {budget.standard_error:.0f} points" in line
                assert millions(budget.tokens) in line


def test_encoders_of_other_sizes_are_left_alone() -> None:
    assert meaning(1e4, 100.0, num_weights=85_000_000) == ()
    assert meaning(1e4, 100.0, num_weights=0) == ()


def test_the_table_is_in_order_and_of_the_encoders_it_names() -> None:
    for table in TABLE:
        tokens = [row.tokens for row in table.budgets]
        assert tokens == sorted(set(tokens))
        assert table.budgets[-1].tokens > table.plateau_tokens
        layers, dim = (int(word) for word in table.encoder.removeprefix("BERT ").split(" x "))
        encoder = BertEncoder(
            vocab_size=50, dim=dim, num_layers=layers, num_heads=1, hidden_dim=4 * dim, max_length=8, pooler=False
        )
        assert block_weights(encoder) == table.num_weights == layers * 12 * dim**2
