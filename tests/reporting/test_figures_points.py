"""Lines and points that can be told apart: beside each other at names, with other markers where colours repeat."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import radians, sin
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from lmtransfer.reporting.figures.kinds import draw_points
from lmtransfer.reporting.figures.spec import Panel, Series
from lmtransfer.reporting.figures.style import MARKERS, PALETTE, new_figure
from lmtransfer.verdicts.spread import spread

SCORE = spread((0.5, 0.7))


def lines(figure: Figure) -> list[ErrorbarContainer]:
    return [held for held in figure.axes[0].containers if isinstance(held, ErrorbarContainer)]


def drawn(series: list[Series], key: str = "recipe") -> tuple[Figure, list[str]]:
    """The figure, and the labels of its lines."""
    figure = new_figure("t", width=7.2, height=3.9)
    ends = draw_points(figure.subplots(), Panel("points", key, "accuracy", tuple(series)))
    figure.canvas.draw()
    return figure, [text for _, text, _ in ends]


@pytest.mark.parametrize("number", [len(PALETTE), len(PALETTE) + 1, 2 * len(PALETTE) + 3])
def test_every_line_has_its_own_colour_and_marker(number: int) -> None:
    figure, labels = drawn([Series(f"line {k}", ((float(k + 1), SCORE),)) for k in range(number)], "tokens")
    looks = {(to_hex(line.lines[0].get_color()), line.lines[0].get_marker()) for line in lines(figure)}
    assert len(looks) == number
    shown = [label.partition(" line ")[0] for label in labels]
    if number > len(PALETTE):  # the label shows the marker
        assert shown == [MARKERS[line.lines[0].get_marker()] for line in lines(figure)]
    else:
        assert labels == [f"line {k}" for k in range(number)]


def test_scores_at_one_name_stand_beside_each_other_and_nearest_to_it() -> None:
    names = ("a", "b", "c")
    several = [
        Series(label, tuple((name, SCORE) for name in names), is_control=label.endswith("control"))
        for label in ("probe", "finetune", "probe, control", "finetune, control")
    ]
    figure, _ = drawn(several)
    places = [line.lines[0].get_xdata() for line in lines(figure)]
    for one, other in combinations(places, 2):
        assert all(abs(x - y) > 0.1 for x, y in zip(one, other, strict=True))
    for of_line in places:
        assert [round(float(x)) for x in of_line] == [0, 1, 2]
        assert all(abs(x - name) < 0.4 for name, x in enumerate(of_line))


def test_a_single_line_stands_at_its_names() -> None:
    figure, _ = drawn([Series("probe", (("a", SCORE), ("b", SCORE)))])
    (line,) = lines(figure)
    assert list(line.lines[0].get_xdata()) == [0, 1]


@pytest.mark.parametrize("numbers", [(1.0, 5.0, 20.0), (0.0, 0.5, 1.0)])
def test_scores_at_one_number_stand_beside_each_other_and_nearest_to_it(numbers: tuple[float, ...]) -> None:
    def on_paper(artist: Any) -> list[float]:
        """Horizontal positions of the points of an artist, in typographic points."""
        return [72 / figure.dpi * x for x, _ in artist.get_transform().transform(artist.get_xydata())]

    figure, _ = drawn([Series(f"line {k}", tuple((number, SCORE) for number in numbers)) for k in range(6)], "minutes")
    axes = figure.axes[0]
    exact = [72 / figure.dpi * axes.transData.transform((number, 0.5))[0] for number in numbers]
    places = [on_paper(line.lines[0]) for line in lines(figure)]
    for one, other in combinations(places, 2):
        assert all(abs(x - y) > 4 for x, y in zip(one, other, strict=True))
    for of_line in places:
        assert all(abs(x - at) < 16 for x, at in zip(of_line, exact, strict=True))
    dots = [line for line in axes.lines if to_hex(line.get_markerfacecolor()) == "#ffffff"]
    assert sorted(x for dot in dots for x in on_paper(dot)) == pytest.approx(
        sorted(x for of_line in places for x in of_line for _ in SCORE.values)
    )
    for line in lines(figure):  # the numbers themselves stay as they are
        assert tuple(line.lines[0].get_xdata()) == numbers


def test_a_single_line_stands_at_its_numbers() -> None:
    figure, _ = drawn([Series("probe", ((1.0, SCORE), (5.0, SCORE)))], "minutes")
    (line,) = lines(figure)
    moved, exact = line.lines[0].get_transform(), figure.axes[0].transData
    assert tuple(moved.transform((5.0, 0.5))) == pytest.approx(tuple(exact.transform((5.0, 0.5))))


def test_long_names_do_not_overlap() -> None:
    names = [f"a_rather_long_name_{k}" for k in range(12)]
    figure, _ = drawn([Series("probe", tuple((name, SCORE) for name in names))])
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
    figure, _ = drawn([Series("probe", tuple((code, SCORE) for code in codes))])
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {0}


def test_scores_of_many_lines_stay_with_their_name() -> None:
    figure, _ = drawn([Series(f"line {k}", (("a", SCORE), ("b", SCORE))) for k in range(9)])
    for line in lines(figure):
        assert [round(float(x)) for x in line.lines[0].get_xdata()] == [0, 1]


@pytest.mark.parametrize("start", [[], [0.0]])
def test_numbers_on_a_logarithmic_axis_do_not_overlap(start: list[float]) -> None:
    numbers = [*start, *(4e5 + 8e5 * k for k in range(9))]
    figure, _ = drawn([Series("probe", tuple((number, SCORE) for number in numbers))], "tokens")
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
