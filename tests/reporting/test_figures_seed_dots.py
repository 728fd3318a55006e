"""Every figure that shows several seeds shows each of them as a dot, read from what was drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import loss_lines, pretraining, task_lines, transfer, write_run
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lmtransfer.reporting.figures import kinds
from lmtransfer.reporting.figures.scores import draw_figures, layer_panel
from lmtransfer.reporting.figures.spec import Chart, LossCurve, Panel, Series
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.details import LayerWeights
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps
from lmtransfer.verdicts.spread import Spread, spread

#: Figures as they were saved, by the title above them.
Drawn = dict[str, Figure]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Every figure that is saved during the test."""
    saved: Drawn = {}
    save = Figure.savefig

    def keep(figure: Figure, *words: Any, **named: Any) -> None:
        saved[figure.get_suptitle()] = figure
        save(figure, *words, **named)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def dots(figure: Figure, place: int = 0) -> list[tuple[float, float]]:
    """The white dots with a coloured edge in the axes of that number: x and y of each, which are seeds."""
    lines = [line for line in figure.axes[place].lines if line.get_marker() == "o" and is_white(line)]
    return sorted((float(x), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True))


def is_white(line: Any) -> bool:
    fill, edge = (to_hex(shade) for shade in (line.get_markerfacecolor(), line.get_markeredgecolor()))
    return fill == "#ffffff" and edge != fill


def approximately(points: list[tuple[float, float]]) -> Any:
    return [pytest.approx(point) for point in sorted(points)]


def draw_panels(folder: Path, *panels: Panel) -> None:
    """Draw a figure with the title ``t``."""
    kinds.draw(Chart("x", "t", panels), folder)


def draw(root: Path, drawn: Drawn, title: str) -> Figure:
    """The figure with the shortest title that contains some words, of a report on ``root``."""
    entries = make_entries(collect(root))
    draw_figures(entries, find_sweeps(entries), root.parent / "figures")
    return drawn[min((name for name in drawn if title in name), key=len)]


@pytest.mark.parametrize("values", [(), (0.5, 0.7)])
def test_the_subtitle_names_dots_only_where_there_are_some(
    values: tuple[float, ...], tmp_path: Path, drawn: Drawn
) -> None:
    score = Spread(mean=0.6, median=0.6, deviation=0.1, n=2, values=values)
    draw_panels(tmp_path, Panel("points", "labels", "accuracy", (Series("a", ((10.0, score),)),)))
    (axes,) = drawn["t"].axes
    said = axes.get_title(loc="left")
    assert said.startswith("mean and deviation over seeds")
    assert ("small dots" in said) == bool(values)


@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.7), (0.5, 0.55, 0.7)])
def test_points(values: tuple[float, ...], tmp_path: Path, drawn: Drawn) -> None:
    series = Series("a", ((10.0, spread(values)), (20.0, spread(values))))
    draw_panels(tmp_path, Panel("points", "labels", "accuracy", (series,)))
    expected = [(x, 100 * value) for x in (10.0, 20.0) for value in values] if len(values) > 1 else []
    assert dots(drawn["t"]) == approximately(expected)


def test_mixtures_of_layers(tmp_path: Path, drawn: Drawn) -> None:
    seeds = ((0.2, 0.8), (0.4, 0.6), (0.3, 0.7))
    made = LayerWeights("a", 1.0, (0.3, 0.7), (0.1, 0.1), seeds=seeds)
    draw_panels(tmp_path, layer_panel([made]))
    assert dots(drawn["t"]) == approximately([(layer, of[layer]) for of in seeds for layer in range(2)])


def test_the_layers_of_each_seed_are_read_from_its_run(tmp_path: Path, drawn: Drawn) -> None:
    run = transfer(tmp_path / "runs" / "probe" / "elmo", [0.7, 0.72], command="probe")
    mixtures = [{"gamma": 1.0, "weights": [0.1, 0.9]}, {"gamma": 1.2, "weights": [0.3, 0.7]}]
    for place, learned in enumerate(mixtures):
        path = run / f"seed-{place}" / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "layer_weights": learned}))
    whole = json.loads((run / "result.json").read_text())
    joint = {"gamma": 1.1, "weights": [0.2, 0.8], "deviation": {"gamma": 0.1, "weights": [0.1, 0.1]}}
    (run / "result.json").write_text(json.dumps({"format": 1, **whole, "layer_weights": joint}))
    figure = draw(tmp_path / "runs", drawn, "weight of each layer")
    assert dots(figure) == approximately([(0, 0.1), (0, 0.3), (1, 0.9), (1, 0.7)])


def test_bars(tmp_path: Path, drawn: Drawn) -> None:
    transfer(tmp_path / "runs" / "finetune" / "ft", [0.7, 0.72, 0.71], controls=[0.66, 0.67])
    figure = draw(tmp_path / "runs", drawn, "1,000 labels: accuracy")  # majority, control, ft from above
    assert dots(figure) == approximately([(66.0, 1), (67.0, 1), (70.0, 2), (72.0, 2), (71.0, 2)])


def test_learning_curves_of_a_task(tmp_path: Path, drawn: Drawn) -> None:
    scores, controls = [0.7, 0.72, 0.71], [0.66, 0.67]
    transfer(tmp_path / "runs" / "finetune" / "ft", scores, controls=controls)
    figure = draw(tmp_path / "runs", drawn, "on held-out examples while training")
    lines = [line for score in (*scores, *controls) for line in task_lines(score)]
    assert dots(figure) == approximately([(line["step"], 100 * line["validation/accuracy"]) for line in lines])


def test_one_seed_of_a_task_is_its_line(tmp_path: Path, drawn: Drawn) -> None:
    curve = Series("a", tuple((step, spread([step / 10])) for step in (1.0, 2.0, 3.0)))
    draw_panels(tmp_path, Panel("curves", "optimizer steps", "accuracy", (curve,)))
    assert dots(drawn["t"]) == []
    assert len(drawn["t"].axes[0].lines) == 1


def test_long_curves_keep_the_last_dot_of_each_seed(tmp_path: Path, drawn: Drawn) -> None:
    curve = Series("a", tuple((step, spread([seed + step / 1000 for seed in range(3)])) for step in range(1000)))
    draw_panels(tmp_path, Panel("curves", "optimizer steps", "loss", (curve,)))
    found = dots(drawn["t"])
    assert [point for point in found if point[0] == 999] == approximately([(999, s + 0.999) for s in range(3)])
    assert 3 * 20 <= len(found) <= 3 * 25


def pretrained(folder: Path, finals: list[float], change: Callable[[list[dict[str, Any]]], None] | None = None) -> None:
    """A pretraining run of several seeds."""
    for seed, final in enumerate(finals):
        run = pretraining(folder / f"seed-{seed}", final=final, seed=seed)
        if change is not None:
            lines = loss_lines(final)
            change(lines)
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_learning_curves_of_pretraining(tmp_path: Path, drawn: Drawn) -> None:
    pretrained(tmp_path / "runs" / "pretrain" / "two", [4.5, 4.6])
    pretraining(tmp_path / "runs" / "pretrain" / "one", final=4.7)
    figure = draw(tmp_path / "runs", drawn, "Pretraining loss (mlm) of 2 runs")
    lines = [line for final in (4.5, 4.6) for line in loss_lines(final) if "validation/mlm" in line]
    for place, x in enumerate(("tokens", "seconds")):
        assert dots(figure, place) == approximately([(line[x], line["validation/mlm"]) for line in lines])
        of_run = [line for line in figure.axes[place].lines if len(line.get_xdata()) == 200]
        assert len(of_run) == 4  # a smooth line a seed; of a single one also what was logged
        assert len({line.get_color() for line in of_run}) == 2
    assert {text.get_text() for text in figure.axes[1].texts} == {"two (2 seeds)", "one"}


def test_many_seeds_of_two_runs_are_all_drawn(tmp_path: Path, drawn: Drawn) -> None:
    for name in "ab":
        pretrained(tmp_path / "runs" / "pretrain" / name, [4.5 + 0.01 * seed for seed in range(5)])
    figure = draw(tmp_path / "runs", drawn, "Pretraining loss (mlm) of 2 runs")
    assert len(dots(figure)) == 2 * 5 * 4


def test_seeds_that_were_not_validated_have_a_dot_at_the_end(tmp_path: Path, drawn: Drawn) -> None:
    curves = tuple(LossCurve("a", (1.0, 2.0), (0.1, 0.2), (5.0, last)) for last in (4.0, 4.5))
    draw_panels(tmp_path, *(Panel("loss", x, "mlm", losses=curves) for x in ("tokens", "seconds")))
    (figure,) = drawn.values()
    assert dots(figure) == approximately([(2.0, 4.0), (2.0, 4.5)])
    assert dots(figure, 1) == approximately([(0.2, 4.0), (0.2, 4.5)])


def test_the_parts_of_a_mixture(tmp_path: Path, drawn: Drawn) -> None:
    def in_parts(lines: list[dict[str, Any]]) -> None:
        for line in lines[49::50]:
            line |= {"validation/mlm/fra": line["validation/mlm"] + 1, "validation/mlm/spa": line["validation/mlm"] + 2}

    pretrained(tmp_path / "runs" / "pretrain" / "wikis", [4.5, 4.6, 4.8], in_parts)
    figure = draw(tmp_path / "runs", drawn, "wikis: loss on each part")
    lines = [line for final in (4.5, 4.6, 4.8) for line in loss_lines(final) if "validation/mlm" in line]
    assert dots(figure) == approximately(
        [(line["tokens"], line["validation/mlm"] + more) for line in lines for more in (1, 2)]
    )
    lines_of_means = [line for line in figure.axes[0].lines if line.get_linewidth() > 1 and not is_white(line)]
    ends = [sum(line["validation/mlm"] for line in lines[3::4]) / 3 + more for more in (1, 2)]
    assert [float(line.get_ydata()[-1]) for line in lines_of_means] == pytest.approx(ends)


def test_a_search_of_rates(tmp_path: Path, drawn: Drawn) -> None:
    folder = transfer(tmp_path / "runs" / "finetune" / "ft", [0.7, 0.72])
    scores = {0.001: (0.5, 0.9), 0.01: (0.8, 0.7), 0.1: (0.2, 0.3)}
    result = json.loads((folder / "result.json").read_text())
    result["learning_rate_tries"] = [
        {"arm": "pretrained", "seed": seed, "learning_rate": rate, "score": score}
        for rate, of_rate in scores.items()
        for seed, score in enumerate(of_rate)
    ]
    (folder / "result.json").write_text(json.dumps({"format": 1, **result}))
    figure = draw(tmp_path / "runs", drawn, "expected best")
    # Three draws with replacement of 3 rates, the best by the mean over seeds (0.75, 0.7, 0.25): by brute force.
    rates, expected = list(scores), []
    for k in (1, 2, 3):
        draws = [[rates[number // 3**place % 3] for place in range(k)] for number in range(3**k)]
        chosen = [max(some, key=lambda rate: sum(scores[rate])) for some in draws]
        expected += [(k, 100 * sum(scores[rate][seed] for rate in chosen) / 3**k) for seed in range(2)]
    assert dots(figure) == approximately(expected)


def test_labels_and_sweeps(tmp_path: Path, drawn: Drawn) -> None:
    for size in (100, 300):
        transfer(tmp_path / "runs" / "finetune" / f"ft-{size}", [0.6, 0.62], num_train=size)
    figure = draw(tmp_path / "runs", drawn, "by number of labels")
    assert dots(figure) == approximately([(x, y) for x in (100, 300) for y in (60.0, 62.0)])
    for rate in (0.15, 0.4):
        folder = tmp_path / "other" / "pretrain" / "masks" / f"objective.mask_prob={rate}"
        pretraining(folder, mask_prob=rate)
        result = json.loads((folder / "result.json").read_text())
        result["seeds"] = [{"seed": seed, "metrics": {"loss": 5 + rate + seed}} for seed in range(2)]
        (folder / "result.json").write_text(json.dumps({"format": 1, **result}))
    figure = draw(tmp_path / "other", drawn, "validation loss by objective.mask_prob")
    assert dots(figure) == approximately([(rate, 5 + rate + seed) for rate in (0.15, 0.4) for seed in range(2)])


def test_a_setting_of_pretraining(tmp_path: Path, drawn: Drawn) -> None:
    for rate in (0.05, 0.8):
        source = pretraining(tmp_path / "runs" / "pretrain" / f"mask_{rate}", mask_prob=rate)
        transfer(tmp_path / "runs" / "finetune" / source.name, [rate, rate + 0.1], init=str(source))
    figure = draw(tmp_path / "runs", drawn, "pretraining loss, and scores on")
    assert dots(figure, 1) == approximately([(x, 100 * (x + more)) for x in (0.05, 0.8) for more in (0, 0.1)])


def test_a_memory_of_evaluation_by_the_seeds_of_a_run(tmp_path: Path, drawn: Drawn) -> None:
    measured = {0: [4.6, 4.2], 1: [4.8, 4.3]}
    for seed, losses in measured.items():
        result = {"command": "evaluate", "metrics": {"loss": losses[-1]}, "main_metric": "loss"}
        result["curve"] = {"key": "memory_length", "values": [0, 64], "losses": losses}
        config = {"run": f"/elsewhere/pretrain/xl/seed-{seed}"}
        write_run(tmp_path / "runs" / "evaluate" / f"of-{seed}", config=config, result=result)
    figure = draw(tmp_path / "runs", drawn, "Validation loss by memory length: xl")
    assert dots(figure) == approximately([(x, losses[x // 64]) for losses in measured.values() for x in (0, 64)])
