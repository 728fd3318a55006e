"""The expected best of several learning rates, by brute force, and its figure."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from fakes.runs import transfer

from lmtransfer.reporting.figures.kinds import draw
from lmtransfer.reporting.figures.scores import search_charts
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.details import rate_scores, search_text
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.verdicts.spread import expected_best


@pytest.mark.parametrize("values", [[0.3], [0.5, 0.5], [0.61, 0.4, 0.7, 0.52]])
@pytest.mark.parametrize("higher", [True, False])
def test_the_expected_best_is_that_of_all_draws(values: list[float], higher: bool) -> None:
    choose = max if higher else min
    for k, found in enumerate(expected_best(values, higher_is_better=higher), start=1):
        draws = [choose(drawn) for drawn in itertools.product(values, repeat=k)]
        assert found == pytest.approx(sum(draws) / len(draws))


def test_a_search_is_drawn_with_its_control(tmp_path: Path) -> None:
    folder = transfer(tmp_path / "finetune" / "ft", [0.7, 0.72], controls=[0.6, 0.63])
    result = json.loads((folder / "result.json").read_text())
    result["learning_rate_tries"] = [
        {"arm": condition, "seed": seed, "learning_rate": rate, "score": base + gain + 0.01 * seed}
        for condition, base in (("pretrained", 0.6), ("control", 0.5))
        for rate, gain in ((0.001, 0.0), (0.01, 0.08), (0.1, 0.02))
        for seed in (0, 1)
    ] + ["damaged", {"arm": "pretrained", "learning_rate": None, "score": "x"}]
    (folder / "result.json").write_text(json.dumps({"format": 1, **result}))
    entries = make_entries(collect(tmp_path))
    tried = rate_scores(entries[0].run, "pretrained")
    assert {rate: score.mean for rate, score in tried.items()} == pytest.approx({0.001: 0.605, 0.01: 0.685, 0.1: 0.625})
    (chart,) = search_charts(entries)
    drawn = draw(chart, tmp_path).svg.read_text()
    for part in ("expected best held-out accuracy of ft", "learning rates tried", "control"):
        assert part in drawn
    result["learning_rate_tries"] = "damaged"
    (folder / "result.json").write_text(json.dumps({"format": 1, **result}))
    assert search_charts(make_entries(collect(tmp_path))) == []


def test_a_choice_is_said() -> None:
    assert "best of 2" in search_text([1e-3, 1e-2, 1e-2])
    assert search_text([1e-3, 1e-2, 1e-1], 1e-2) == search_text([1e-3, 1e-2, 1e-1])
    for rate, edge in ((1e-3, "smallest (0.001)"), (1e-2, "largest (0.01)")):
        assert edge in search_text([1e-3, 3e-3, 1e-2], rate)
        assert edge not in search_text([1e-3, 1e-2], rate)  # of two rates each is at an edge
    assert [search_text(grid) for grid in ([1e-3], None, "1e-3", [True, "x"])] == [""] * 4
