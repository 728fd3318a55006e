from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.transfer.experiment.learning_rate_search import LearningRateSearch
from lmtransfer.transfer.experiment.settings import Part


@pytest.mark.parametrize(
    ("tries", "best"),
    [
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.5, 0.6)], 0.3: [(0.6, 0.8), (0.6, 0.8)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.4, 0.6)]}, 0.1),
        ({0.1: [(0.5, None), (0.5, 0.1)], 0.2: [(0.5, 7.0), (0.5, 7.0)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.5, 0.9)], 0.2: [(0.5, 0.9), (0.5, 0.9)]}, 0.1),
    ],
)
def test_of_learning_rates_with_the_same_mean_score_the_one_with_the_lowest_mean_loss_is_chosen(
    tries: dict[float, list[tuple[float, float | None]]], best: float, tmp_path: Path
) -> None:
    (tmp_path / "tries").mkdir()
    for rate, scores in tries.items():
        for seed, (score, loss) in enumerate(scores):
            tried = {"arm": "pretrained", "seed": seed, "learning_rate": rate, "score": score}
            tried |= {} if loss is None else {"loss": loss}
            (tmp_path / "tries" / f"pretrained-seed-{seed}-rate-{rate:g}.json").write_text(json.dumps(tried))
    data = SimpleNamespace(choosing=None)
    setting: Any = SimpleNamespace(pretraining_seed=None, data=data, score_text=lambda score: f"{score:.3f}")
    parts = {
        rate: [Part(setting, "pretrained", seed, rate, folder=f"seed-{seed}") for seed in range(2)] for rate in tries
    }
    search = LearningRateSearch(RunDirectory(tmp_path), has_pretraining_seeds=False, say=lambda line: None)
    assert search.choose(parts) == best
