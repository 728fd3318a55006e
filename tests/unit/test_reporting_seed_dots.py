"""Every figure that shows a mean over seeds shows the seeds as dots."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from reporting_fakes import pretraining, transfer

from lmtransfer.reporting.figures.all_figures import draw_figures
from lmtransfer.reporting.figures.layer_bars import draw_layer_weights
from lmtransfer.reporting.figures.points import Series, draw_points
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.layer_weights import LayerWeights
from lmtransfer.verdicts.spread import spread


def dots(svg: Path) -> int:
    """White dots with a coloured edge, which are seeds."""
    text = svg.read_text().lower()
    return len(re.findall(r'<use [^>]*style="fill: #ffffff; stroke: #', text))


@pytest.mark.parametrize(("values", "expected"), [((0.5,), 0), ((0.5, 0.7), 4), ((0.5, 0.55, 0.7), 6)])
def test_points_have_a_dot_for_each_seed(values: tuple[float, ...], expected: int, tmp_path: Path) -> None:
    series = [Series("a", ((10.0, spread(values)), (20.0, spread(values))))]
    figure = draw_points(series, tmp_path, name="x", title="t", key="labels", metric="accuracy")
    assert dots(figure.svg) == expected


def test_mixtures_of_layers_have_a_dot_for_each_seed_and_layer(tmp_path: Path) -> None:
    seeds = ((0.2, 0.8), (0.4, 0.6), (0.3, 0.7))
    made = LayerWeights("a", 1.0, (0.3, 0.7), (0.1, 0.1), seeds=seeds)
    assert dots(draw_layer_weights([made], tmp_path, name="x", title="t").svg) == 6


def test_the_layers_of_each_seed_are_read_from_its_run(tmp_path: Path) -> None:
    run = transfer(tmp_path / "probe" / "elmo", [0.7, 0.72], command="probe")
    mixtures = [{"gamma": 1.0, "weights": [0.1, 0.9]}, {"gamma": 1.2, "weights": [0.3, 0.7]}]
    for place, learnt in enumerate(mixtures):
        folder = run / f"seed-{place}"
        folder.mkdir(exist_ok=True)
        path = folder / "result.json"
        before = json.loads(path.read_text()) if path.is_file() else {"command": "probe", "seed": place}
        path.write_text(json.dumps({**before, "layer_weights": learnt}))
    whole = json.loads((run / "result.json").read_text())
    joint = {"gamma": 1.1, "weights": [0.2, 0.8], "deviation": {"gamma": 0.1, "weights": [0.1, 0.1]}}
    (run / "result.json").write_text(json.dumps({**whole, "layer_weights": joint}))
    drawn = {figure.name: figure for figure in draw_figures(make_entries(collect(tmp_path)), [], tmp_path / "figures")}
    assert dots(drawn["layers-1"].svg) == 4


def test_each_pretraining_seed_has_its_curve(tmp_path: Path) -> None:
    for seed in (0, 1):
        pretraining(tmp_path / "pretrain" / "two" / f"seed-{seed}", seed=seed)
    entries = make_entries(collect(tmp_path))
    assert [entry.run.key for entry in entries] == ["pretrain/two"]
    drawn = {figure.name: figure for figure in draw_figures(entries, [], tmp_path / "figures")}
    text = drawn["pretraining-loss-mlm"].svg.read_text()
    assert "two/seed-0" in text
    assert "two/seed-1" in text
