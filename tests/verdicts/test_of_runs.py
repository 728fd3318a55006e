"""Verdicts on scores of real runs: seeds of one condition against others of the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.transfer_files import QUICK, lmtransfer, make_world, result

from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import condition


@pytest.mark.slow
def test_halves_of_one_pool_of_seeds_are_seldom_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    words = ["seeds=20", "task.num_train=60", "train.epochs=6", "optimizer.learning_rate=0.02", "transfer.pooling=mean"]
    assert lmtransfer("finetune", *QUICK, *words, "name=pool") == 0
    pool = {seed["seed"]: seed["metrics"]["accuracy"] for seed in result("runs/finetune/pool")["seeds"]}
    assert len(pool) == 20
    assert len(set(pool.values())) > 5  # a pool with luck in it
    rng, verdicts = np.random.default_rng(0), 0
    for _ in range(50):
        order = rng.permutation(list(pool)).tolist()
        sides = [condition([pool[seed] for seed in half], seeds=half) for half in (order[:10], order[10:])]
        found = compare_conditions(*sides)
        assert not found.paired
        assert found.p_value is not None
        verdicts += found.verdict in ("better", "worse")
    assert verdicts <= 4
