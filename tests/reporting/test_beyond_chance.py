"""Verdicts against chance: Holm's correction by its definition, and how often a run at chance is called beyond it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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


def _about(values: np.ndarray) -> tuple[float, list[float]]:
    mean, reach = float(values.mean()), 1.96 * float(values.std(ddof=1)) / np.sqrt(len(values))
    return mean, [mean - reach, mean + reach]


def _entry(
    task: str,
    rights: np.ndarray,
    frequencies: np.ndarray | None = None,
    control: np.ndarray | None = None,
    run: str = "runs/pretrain/baby",
) -> Any:
    accuracy, interval = _about(rights)
    result: dict[str, Any] = {"metrics": {"accuracy": accuracy}, "chance": 0.5, "interval": interval}
    for key, other in (("minus_token_frequencies", frequencies), ("minus_random_weights", control)):
        if other is not None:
            gain, gain_interval = _about(rights - other)
            result[key] = {"accuracy": gain, "interval": gain_interval}
    return SimpleNamespace(task=task, run=SimpleNamespace(config={"run": run}, result=result))


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
    assert chance_table([SimpleNamespace(run=SimpleNamespace(result={}, config={}))]) is None  # type: ignore[list-item]


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


@pytest.mark.parametrize("rights", [np.ones(50), np.zeros(50)])
def test_a_run_that_is_always_right_or_wrong_has_a_verdict(rights: np.ndarray) -> None:
    table = chance_table([_entry("blimp", rights)])
    assert table is not None
    assert not table.rows[0][4].startswith("not")
