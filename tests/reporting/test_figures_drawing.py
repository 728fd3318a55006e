"""What is drawn: every seed as a dot, lines and labels that can be told apart, names as they are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations, pairwise
from math import radians, sin
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from lmtransfer.reporting.figures import drawing
from lmtransfer.reporting.figures.drawing import draw_points
from lmtransfer.reporting.figures.scores import layer_panel
from lmtransfer.reporting.figures.spec import Chart, Kind, LossCurve, Panel, Series, moving_average
from lmtransfer.reporting.figures.style import (
    MARKERS,
    PALETTE,
    SavedFigure,
    figure_style,
    label_ends,
    new_figure,
    spread_apart,
)
from lmtransfer.reporting.runs.details import LayerWeights
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.pairing_and_variance import VariancePart
from lmtransfer.verdicts.spread import Spread, spread

SCORE = spread([0.5, 0.6, 0.7])
STEPS = tuple(float(step) for step in range(1, 41))
LOSS = LossCurve("$x_1$ & <b>", STEPS, STEPS, tuple(6 - step / 20 for step in STEPS), ((40.0, 40.0, 4.1),), 6.01,
                 ((20.0, 20.0, "masks & more"),))  # fmt: skip


def lines(figure: Figure) -> list[ErrorbarContainer]:
    return [held for held in figure.axes[0].containers if isinstance(held, ErrorbarContainer)]


def of_points(series: list[Series], key: str = "recipe") -> tuple[Figure, list[str]]:
    """The figure, and the labels of its lines."""
    figure = new_figure("t", width=7.2, height=3.9)
    ends = draw_points(figure.subplots(), Panel("points", key, "accuracy", tuple(series)))
    figure.canvas.draw()
    return figure, [text for _, text, _ in ends]


def of_panel(panel: Panel) -> tuple[Figure, list[str]]:
    """A figure with one panel, and the labels of its lines."""
    with figure_style("t"):
        figure = new_figure("t", width=7.2, height=3.9)
        ends = drawing._DRAW[panel.kind](figure.subplots(), panel)
    return figure, [text for _, text, _ in ends]


def dots(figure: Figure, place: int = 0) -> list[tuple[float, float]]:
    """The white dots with a coloured edge in the axes of that number: x and y of each, which are seeds."""
    lines = [line for line in figure.axes[place].lines if line.get_marker() == "o" and is_white(line)]
    return sorted((float(x), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True))


def is_white(line: Any) -> bool:
    fill, edge = (to_hex(shade) for shade in (line.get_markerfacecolor(), line.get_markeredgecolor()))
    return fill == "#ffffff" and edge != fill


def approximately(points: list[tuple[float, float]]) -> Any:
    return [pytest.approx(point) for point in sorted(points)]


def saved(folder: Path, name: str = "x") -> SavedFigure:
    panels = (Panel("loss", "tokens", "mlm", losses=(LOSS,)), Panel("loss", "seconds", "", losses=(LOSS,)))
    return drawing.draw(Chart(name, "t", panels), folder)


def test_a_saved_figure_has_its_labels_as_text_and_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = (saved(tmp_path / name) for name in "ab")
    assert first.svg.read_bytes() == second.svg.read_bytes()
    assert first.png.read_bytes() == second.png.read_bytes()
    assert first.png.read_bytes().startswith(b"\x89PNG")
    assert first.png.stat().st_size > 20_000
    texts = [
        "".join(node.itertext()).strip() for node in ElementTree.parse(first.svg).iter() if node.tag.endswith("text")
    ]
    for label in (
        "$x_1$ & <b>",
        "tokens",
        "training time (s)",
        "mlm (nats)",
        "unigram entropy 6.01",
        "phase masks & more",
    ):
        assert label in texts
    assert "<b>" not in re.sub(r"<!--.*?-->", "", first.svg.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("values", [(), (0.5, 0.7)])
def test_the_subtitle_names_dots_only_where_there_are_some(values: tuple[float, ...]) -> None:
    score = Spread(mean=0.6, median=0.6, deviation=0.1, n=2, values=values)
    figure, _ = of_panel(Panel("points", "labels", "accuracy", (Series("a", ((10.0, score),)),)))
    said = figure.axes[0].get_title(loc="left")
    assert said.startswith("mean and deviation over seeds")
    assert ("small dots" in said) == bool(values)


SEEDS = (0.5, 0.55, 0.7)
MIX = LayerWeights("a", 1.0, (0.3, 0.7), (0.1, 0.1), seeds=((0.2, 0.8), (0.4, 0.6), (0.3, 0.7)))
TWO = Series("a", tuple((x, spread(SEEDS)) for x in (10.0, 20.0)))
CURVES = tuple(LossCurve("a", (1.0, 2.0), (0.1, 0.2), (5.0, last)) for last in (4.0, 4.5))


@pytest.mark.parametrize(("panel", "expected"), [
    (Panel("points", "labels", "accuracy", (TWO,)), [(x, 100 * y) for x in (10.0, 20.0) for y in SEEDS]),
    (Panel("points", "labels", "accuracy", (Series("a", ((10.0, spread([0.5])),)),)), []),
    (Panel("bars", "", "accuracy", (Series("", (("a", spread([0.2])),)), Series("", (("b", spread(SEEDS)),)))),
     [(100 * x, 1) for x in SEEDS]),
    (layer_panel([MIX]), [(layer, seed[layer]) for seed in MIX.seeds for layer in range(2)]),
    (Panel("curves", "optimizer steps", "accuracy", (TWO,)), [(x, 100 * y) for x in (10.0, 20.0) for y in SEEDS]),
    (Panel("curves", "tokens", "accuracy", (Series("a", ((1.0, spread([0.5])), (2.0, spread([0.6])))),)), []),
    (Panel("loss", "tokens", "mlm", losses=CURVES), [(2.0, 4.0), (2.0, 4.5)]),  # not validated: at the end
    (Panel("loss", "seconds", "mlm", losses=CURVES), [(0.2, 4.0), (0.2, 4.5)]),
    (Panel("loss", "tokens", "mlm", losses=(LOSS, LOSS)), [(40.0, 4.1)] * 2),
])  # fmt: skip
def test_each_of_several_seeds_is_a_dot(panel: Panel, expected: list[tuple[float, float]]) -> None:
    assert dots(of_panel(panel)[0]) == approximately(expected)


def test_the_seeds_of_a_run_share_a_colour_and_a_label() -> None:
    other = LossCurve("b", *(LOSS.tokens,) * 2, LOSS.loss)
    figure, labels = of_panel(Panel("loss", "tokens", "mlm", losses=(LOSS, LOSS, other)))
    assert labels == ["$x_1$ & <b> (2 seeds)", "b"]
    curves = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(STEPS)]
    assert len(curves) == 3
    assert len({line.get_color() for line in curves}) == 2


def test_long_curves_keep_the_last_dot_of_each_seed() -> None:
    curve = Series("a", tuple((step, spread([seed + step / 1000 for seed in range(3)])) for step in range(1000)))
    found = dots(of_panel(Panel("curves", "optimizer steps", "loss", (curve,)))[0])
    assert [point for point in found if point[0] == 999] == approximately([(999, s + 0.999) for s in range(3)])
    assert 3 * 20 <= len(found) <= 3 * 25


@pytest.mark.parametrize("number", [len(PALETTE), len(PALETTE) + 1, 2 * len(PALETTE) + 3])
def test_every_line_has_its_own_colour_and_marker(number: int) -> None:
    figure, labels = of_points([Series(f"line {k}", ((float(k + 1), SCORE),)) for k in range(number)], "tokens")
    looks = {(to_hex(line.lines[0].get_color()), line.lines[0].get_marker()) for line in lines(figure)}
    assert len(looks) == number
    shown = [label.partition(" line ")[0] for label in labels]
    assert shown == [MARKERS[line.lines[0].get_marker()] for line in lines(figure)]
    assert len(set(shown[: len(PALETTE)])) == len(PALETTE)  # so that the first lines differ without their colors


def test_scores_at_one_name_stand_beside_each_other_and_nearest_to_it() -> None:
    names = ("a", "b", "c")
    several = [
        Series(label, tuple((name, SCORE) for name in names), is_control=label.endswith("control"))
        for label in ("probe", "finetune", "probe, control", "finetune, control")
    ]
    figure, _ = of_points(several)
    places = [line.lines[0].get_xdata() for line in lines(figure)]
    for one, other in combinations(places, 2):
        assert all(abs(x - y) > 0.1 for x, y in zip(one, other, strict=True))
    for of_line in places:
        assert [round(float(x)) for x in of_line] == [0, 1, 2]
        assert all(abs(x - name) < 0.4 for name, x in enumerate(of_line))


@pytest.mark.parametrize("numbers", [(1.0, 5.0, 20.0), (0.0, 0.5, 1.0)])
def test_scores_at_one_number_stand_beside_each_other_and_nearest_to_it(numbers: tuple[float, ...]) -> None:
    def on_paper(artist: Any) -> list[float]:
        """Horizontal positions of the points of an artist, in typographic points."""
        return [72 / figure.dpi * x for x, _ in artist.get_transform().transform(artist.get_xydata())]

    figure, _ = of_points(
        [Series(f"line {k}", tuple((number, SCORE) for number in numbers)) for k in range(6)], "minutes"
    )
    axes = figure.axes[0]
    exact = [72 / figure.dpi * axes.transData.transform((number, 0.5))[0] for number in numbers]
    places = [on_paper(line.lines[0]) for line in lines(figure)]
    for one, other in combinations(places, 2):
        assert all(abs(x - y) > 4 for x, y in zip(one, other, strict=True))
    for of_line in places:
        assert all(abs(x - at) < 18 for x, at in zip(of_line, exact, strict=True))
    dots = [line for line in axes.lines if to_hex(line.get_markerfacecolor()) == "#ffffff"]
    whiskers = sorted(x for of_line in places for x in of_line)
    at = sorted({round(x, 3) for dot in dots for x in on_paper(dot)})
    assert len(at) == len(whiskers)
    assert all(2.5 < x - whisker < 5 for x, whisker in zip(at, whiskers, strict=True))  # beside it, not on it
    for line in lines(figure):  # the numbers themselves stay as they are
        assert tuple(line.lines[0].get_xdata()) == numbers


def test_a_control_has_the_marker_of_its_line() -> None:
    names = ("frozen", "finetuned", "frozen control", "finetuned, control", "control")
    series = [Series(name, ((1.0, SCORE), (5.0, SCORE)), is_control="control" in name) for name in names]
    figure, labels = of_points(series, "tokens")
    frozen, finetuned, *controls = (line.lines[0] for line in lines(figure))
    assert frozen.get_marker() != finetuned.get_marker()
    assert [line.get_marker() for line in controls] == [frozen.get_marker(), finetuned.get_marker(), "o"]
    assert len({to_hex(line.get_color()) for line in controls}) == 1
    assert [label.partition(" ")[2] for label in labels] == list(names)


@pytest.mark.parametrize("kind", ["bars", "columns"])
def test_the_dots_of_a_bar_are_beside_its_whisker(kind: Kind) -> None:
    series = (Series("", (("a", spread(SEEDS)),)), Series("", (("b", spread([0.2, 0.3])),)))
    figure, _ = of_panel(Panel(kind, "", "accuracy", series))
    figure.canvas.draw()
    axes, across = figure.axes[0], int(kind == "bars")  # the axis on which the names are
    for line in (line for line in axes.lines if line.get_marker() == "o" and is_white(line)):
        on_paper = line.get_transform().transform(line.get_xydata())
        of_names = [axes.transData.transform((round(x), 0) if kind == "columns" else (0, round(y)))
                    for x, y in line.get_xydata()]  # fmt: skip
        distances = [72 / figure.dpi * abs(point[across] - name[across])
                     for point, name in zip(on_paper, of_names, strict=True)]  # fmt: skip
        assert distances == pytest.approx([6.5] * len(distances))


def test_differences_from_control_and_from_word_counts_stand_apart() -> None:
    own = Difference(delta=0.1, verdict="better", scope="this checkpoint", standard_error=0.01,
                     degrees_of_freedom=4.0, p_value=0.01, paired=True, num_seeds=(5, 5), num_pretrainings=(1, 0),
                     parts=(VariancePart("finetuning", 1e-4, 4.0),))  # fmt: skip
    counted = replace(own, delta=-0.2, verdict="worse")
    bars = [
        Series("", ((name, SCORE),), differences={"ft": own} if name == "ft" else {}) for name in ("majority", "ft")
    ]
    words = Series("word counts", (("ft", SCORE),), differences={"ft": counted})
    figure, _ = of_panel(Panel("differences", "", "accuracy", (*bars, words)))
    axes = figure.axes[0]
    points = [container.lines[0].get_xydata()[0] for container in lines(figure)]
    assert [point[0] for point in points] == pytest.approx([10, -20])
    assert [round(point[1]) for point in points] == [1, 1]
    assert points[0][1] < 1 < points[1][1]
    assert [text.get_text() for text in axes.texts] == ["+10.0  better", "-20.0  worse"]
    assert "from word counts" in axes.get_title(loc="left")
    alone, _ = of_panel(Panel("differences", "", "accuracy", tuple(bars)))
    assert "word counts" not in alone.axes[0].get_title(loc="left")
    assert alone.axes[0].get_xlabel() == "difference from control (points)"
    assert [container.lines[0].get_ydata()[0] for container in lines(alone)] == [1]


def test_a_single_line_stands_at_its_places() -> None:
    figure, _ = of_points([Series("probe", (("a", SCORE), ("b", SCORE)))])
    (line,) = lines(figure)
    assert list(line.lines[0].get_xdata()) == [0, 1]
    figure, _ = of_points([Series("probe", ((1.0, SCORE), (5.0, SCORE)))], "minutes")
    (line,) = lines(figure)
    moved, exact = line.lines[0].get_transform(), figure.axes[0].transData
    assert tuple(moved.transform((5.0, 0.5))) == pytest.approx(tuple(exact.transform((5.0, 0.5))))


def test_long_names_do_not_overlap() -> None:
    names = [f"a_rather_long_name_{k}" for k in range(12)]
    figure, _ = of_points([Series("probe", tuple((name, SCORE) for name in names))])
    labels = figure.axes[0].get_xticklabels()
    # Rotated texts lie on parallel lines through their ends: these must be further apart than a line is high.
    (angle,) = {label.get_rotation() for label in labels}
    ends = [figure.axes[0].transData.transform((k, 0))[0] for k in range(len(names))]
    height = labels[0].get_fontsize() * figure.dpi / 72
    apart = (ends[1] - ends[0]) * sin(radians(angle))
    assert apart > height
    assert all(label.get_horizontalalignment() == "right" for label in labels)


def test_short_names_are_level() -> None:
    codes = ["en", "de", "fr", "sw", "ru", "zh", "ar", "hi"]
    figure, _ = of_points([Series("probe", tuple((code, SCORE) for code in codes))])
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {0}


def test_scores_of_many_lines_stay_with_their_name() -> None:
    figure, _ = of_points([Series(f"line {k}", (("a", SCORE), ("b", SCORE))) for k in range(9)])
    for line in lines(figure):
        assert [round(float(x)) for x in line.lines[0].get_xdata()] == [0, 1]


@pytest.mark.parametrize("start", [[], [0.0]])
def test_numbers_on_a_logarithmic_axis_do_not_overlap(start: list[float]) -> None:
    numbers = [*start, *(4e5 + 8e5 * k for k in range(9))]
    figure, _ = of_points([Series("probe", tuple((number, SCORE) for number in numbers))], "tokens")
    axes = figure.axes[0]
    assert axes.get_xscale() == ("symlog" if start else "log")
    ticks = list(axes.get_xticks())
    assert set(ticks) < set(numbers)
    assert [ticks[0], ticks[-1]] == [numbers[0], numbers[-1]]
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize("width", [5.2, 7.2])
def test_a_long_title_stays_inside_the_figure(width: float) -> None:
    figure = new_figure("sst2, dev, 1,000 labels: MACCURACY " * 5, width=width, height=3.9)
    figure.subplots()
    figure.canvas.draw()
    (title,) = figure.texts
    box = title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= width * figure.dpi
    assert title.get_text().count("\n") >= 1


def test_smoothing_is_a_centred_mean_that_ends_one_sided():
    values = np.array([9.0, 1.0, 2.0, np.nan, 6.0, 4.0])
    assert moving_average(values, 2).tolist() == [9.0, 4.0, 1.5, 4.0, 5.0, 5.0]
    assert moving_average(np.array([1.0, 5.0]), 1).tolist() == [1.0, 5.0]


def test_labels_move_apart_as_little_as_needed():
    assert spread_apart([1.0, 3.0, 2.0], 0.5) == [1.0, 3.0, 2.0]
    assert spread_apart([1.0, 1.0], 1.0) == [0.5, 1.5]
    moved = spread_apart([0.0, 0.1, 0.2, 5.0], 1.0)
    assert moved == pytest.approx([-0.9, 0.1, 1.1, 5.0])  # around the mean of the three that overlap


def test_end_labels_do_not_overlap():
    figure = new_figure("title", width=4, height=2)
    axes = figure.subplots()
    axes.set_ylim(0, 1)
    figure.canvas.draw()
    label_ends(axes, [(0.5, "a", "black"), (0.51, "b", "black"), (0.5, "c", "black")])
    heights = sorted(text.get_window_extent().y0 for text in axes.texts)
    tallest = max(text.get_window_extent().height for text in axes.texts)
    assert min(np.diff(heights)) >= 0.9 * tallest
