"""Verdicts against chance: Holm's correction by its definition, and how often a run at chance is called beyond it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from lmtransfer.reporting.beyond_chance import chance_table
from lmtransfer.verdicts.verdict import holm


def test_holms_correction_rejects_what_its_steps_reject() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p_values = (rng.random(6) ** 3).tolist()
        rejected, left = set(), len(p_values)
        for place in np.argsort(p_values).tolist():  # the procedure, step by step
            if p_values[place] > 0.05 / left:
                break
            rejected.add(place)
            left -= 1
        assert {place for place, p in enumerate(holm(p_values)) if p <= 0.05} == rejected
    assert holm([]) == []


def _gain(differences: np.ndarray) -> dict[str, Any]:
    """A difference of accuracies, with a normal interval and McNemar's exact test."""
    mean, reach = float(differences.mean()), 1.96 * float(differences.std(ddof=1)) / np.sqrt(len(differences))
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    p_value = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    return {"accuracy": mean, "interval": [mean - reach, mean + reach], "p_value": float(p_value)}


def _entry(
    task: str,
    rights: np.ndarray,
    frequencies: np.ndarray | None = None,
    control: np.ndarray | None = None,
    run: str = "runs/pretrain/baby",
    has_verdicts: bool = True,
) -> Any:
    test = binomtest(int(rights.sum()), len(rights))
    result: dict[str, Any] = {"metrics": {"accuracy": float(rights.mean())}, "chance": 0.5, "num_scored": len(rights)}
    result |= {"interval": list(test.proportion_ci()), "p_value": float(test.pvalue)}
    for key, other in (("minus_token_frequencies", frequencies), ("minus_random_weights", control)):
        if other is not None:
            result[key] = _gain(rights - other)
    run_of = SimpleNamespace(config={"run": run}, result=result)
    return SimpleNamespace(task=task, run=run_of, has_verdicts=has_verdicts)


def test_a_run_at_chance_is_called_beyond_it_in_few_of_many_tables() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        table = chance_table([_entry(f"task{n}", rng.integers(0, 2, 400).astype(float)) for n in range(7)])
        assert table is not None
        wrong += any(not row[4].startswith("not shown") for row in table.rows)
    assert wrong / 300 < 0.09  # 0.05, and three standard errors


def test_each_task_has_both_verdicts() -> None:
    rng = np.random.default_rng(2)
    good, even, bad = ((rng.random(500) < share).astype(float) for share in (0.8, 0.5, 0.2))
    entries = [_entry("ewok", even), _entry("blimp", good, even), _entry("comps", bad, bad)]
    table = chance_table(entries)
    assert table is not None
    rows = {row[1]: row for row in table.rows}
    assert [row[0] for row in table.rows] == ["baby", "", ""]
    assert rows["blimp"][4].startswith("yes, p < 0.001")
    assert rows["blimp"][6].startswith("yes")
    assert rows["ewok"][4].startswith("not shown")
    assert rows["ewok"][5:] == ["", ""]
    assert rows["comps"][4].startswith("below")
    assert rows["comps"][6] == "not shown, p = 1.000"
    plain = SimpleNamespace(run=SimpleNamespace(result={}, config={}), has_verdicts=True)
    assert chance_table([plain]) is None  # type: ignore[list-item]


def test_seeds_are_one_row_and_their_spread_counts() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):  # no recipe beyond chance: seeds differ from each other, and items in how hard they are
        items = rng.normal(size=400)
        shifts = rng.normal(scale=0.3, size=3)
        seeds = [(items + shift + rng.normal(size=400) > 0).astype(float) for shift in shifts]
        table = chance_table(
            [_entry("blimp", rights, run=f"runs/pretrain/baby/seed-{n}") for n, rights in enumerate(seeds)]
        )
        assert table is not None
        [row] = table.rows
        assert row[0] == "baby, 3 seeds"
        wrong += not row[4].startswith("not shown")
    assert wrong / 300 < 0.09
    alone = chance_table([_entry("blimp", seeds[0], run="runs/pretrain/baby/seed-0")])
    assert alone is not None
    assert alone.rows[0][0] == "baby"


def test_random_weights_have_columns_where_they_were_scored() -> None:
    rng = np.random.default_rng(4)
    good, even = ((rng.random(500) < share).astype(float) for share in (0.8, 0.5))
    table = chance_table([_entry("blimp", good, control=even), _entry("ewok", even)])
    assert table is not None
    assert [column.heading for column in table.columns[5:]] == ["minus random weights", "beyond?"]
    assert table.rows[0][6].startswith("yes")
    assert table.rows[1][5:] == ["", ""]


@pytest.mark.parametrize(("right", "num"), [(2, 6), (6, 6), (0, 3), (25, 29)])
def test_a_share_of_few_items_has_an_exact_interval_and_a_word_on_it(right: int, num: int) -> None:
    rights = np.array([1.0] * right + [0.0] * (num - right))
    table = chance_table([_entry("mine", rights)])
    assert table is not None
    (row,) = table.rows
    exact = binomtest(right, num)
    low, high = exact.proportion_ci()
    assert row[2] == f"{100 * right / num:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    assert row[1].startswith(f"mine (only {num} items")
    assert row[4].endswith("p < 0.001" if exact.pvalue < 0.001 else f"p = {exact.pvalue:.3f}")


def test_a_report_without_verdicts_has_none_against_chance() -> None:
    rng = np.random.default_rng(5)
    good, even = ((rng.random(500) < share).astype(float) for share in (0.8, 0.5))
    table = chance_table([_entry("blimp", good, even, has_verdicts=False), _entry("ewok", even, has_verdicts=False)])
    assert table is not None
    assert [column.heading for column in table.columns[2:]] == ["accuracy (%)", "chance", "minus frequencies"]
    assert not any(word in str(table.rows) + table.note for word in ("p =", "p <", "yes", "not shown", "erdict"))


@pytest.mark.parametrize("rights", [np.ones(50), np.zeros(50)])
def test_a_run_that_is_always_right_or_wrong_has_a_verdict(rights: np.ndarray) -> None:
    table = chance_table([_entry("blimp", rights)])
    assert table is not None
    assert not table.rows[0][4].startswith("not")
