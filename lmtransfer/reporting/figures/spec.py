"""The content of figures as plain data, which reports and studies build and ``drawing`` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np

from lmtransfer.reporting.runs.reference import ReferenceCurve
from lmtransfer.reporting.runs.sweeps import PRETRAINING_TOKENS
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

Kind = Literal["points", "curves", "loss", "bars", "columns", "differences", "reliability"]
#: A number or a name on the x axis.
Place = float | str
_Value = TypeVar("_Value")

#: The headings of x axes by key; any other key is itself the heading.
HEADINGS = {
    "num_train": "labeled training examples",
    "tokens": PRETRAINING_TOKENS,
    "words": "words read",
    "seconds": "seconds of pretraining",
    "flops": "FLOP of pretraining",
    "layer": "layer (0: embeddings)",
    "num_rates": "learning rates tried",
    "memory_length": "memory in evaluation (tokens)",
}
#: Axes that show 1000 as 1k.
COUNTS = ("num_train", "parameters", "tokens", "words", "flops", "num_rates")


@dataclass(frozen=True, slots=True)
class Series:
    """Scores that are drawn in the same style: the points of a line, or bars of one color.

    Attributes:
        points: pairs of a place on the x axis and a score; numbers are in ascending order.
        is_reference: whether the series is only a dashed reference line.
        ink: the color; by default, gray for a control, and otherwise the next color of the palette.
        differences: the difference from the control, or from what the label names, at each place, for panels of the
            kind ``differences``.
    """

    label: str
    points: tuple[tuple[Place, Spread], ...]
    is_control: bool = False
    is_reference: bool = False
    ink: str = ""
    differences: Mapping[Place, Difference] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The loss of one pretraining run.

    Attributes:
        loss: the training loss at each logged step in nats.
        validation: tokens, seconds and loss at each validation.
        plateau: the unigram entropy in nats, which is the loss of a model that knows only token frequencies; or None.
        changes: tokens, seconds and the phase's name at the start of each phase but the first.
    """

    label: str
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    loss: tuple[float, ...]
    validation: tuple[tuple[float, float, float], ...] = ()
    plateau: float | None = None
    changes: tuple[tuple[float, float, str], ...] = ()
    references: tuple[ReferenceCurve, ...] = ()

    @property
    def smooth(self) -> np.ndarray:
        """The training loss, averaged over a thirtieth of the steps."""
        return moving_average(np.asarray(self.loss, dtype=float), max(1, len(self.loss) // 30))


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        x: the heading of the x axis, or a key of ``HEADINGS`` for points; for losses, ``tokens`` or ``seconds``.
        y: the metric, which gives the unit and the heading of the y axis; empty to share the y axis to the left.
        note: the text above the axes; by default, an explanation of the marks.
        limits: the limits of the y axis; None to choose them by the data.
    """

    kind: Kind
    x: str
    y: str
    series: tuple[Series, ...] = ()
    losses: tuple[LossCurve, ...] = ()
    note: str = ""
    limits: tuple[float, float] | None = None

    @property
    def places(self) -> list[Place]:
        """The places on the x axis, in order of appearance."""
        return list(dict.fromkeys(place for line in self.series for place, _ in line.points))


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    remarks: tuple[str, ...] = ()


def make_series(scores: Iterable[tuple[str, bool, Place, Spread]]) -> tuple[Series, ...]:
    """Collect scores in series; if a series has several scores at one place, the last counts.

    Args:
        scores: the label of a series, whether the series is a control, a place on the x axis, and a score.
    """
    lines: dict[tuple[str, bool], dict[Place, Spread]] = {}
    for label, is_control, place, score in scores:
        lines.setdefault((label, is_control), {})[place] = score
    return tuple(Series(label, sort_points(points), is_control) for (label, is_control), points in lines.items())


def points_panel(x: str, y: str, series: Sequence[Series]) -> Panel:
    """Build a panel of points, without a label if there is only one series."""
    return Panel("points", x, y, tuple(series) if len(series) > 1 else (replace(series[0], label=""),))


def sort_points(points: Mapping[Place, _Value]) -> tuple[tuple[Place, _Value], ...]:
    """Sort points by place if the places are numbers."""
    items = tuple(points.items())
    return tuple(sorted(items, key=lambda point: float(point[0]))) if are_numbers(points) else items


def are_numbers(places: Iterable[Place]) -> bool:
    """Whether all places on an x axis are numbers."""
    return all(isinstance(place, int | float) for place in places)


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Return a centered moving average of the same length, which ignores values that are not finite.

    At the start, where losses fall fast, the window is shorter. At the end, it is one-sided, so that the last values
    are as smooth as the others.
    """
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    reach = np.minimum(window // 2, places)
    low, high = places - reach, np.minimum(places + reach + 1, len(values))
    total = counts[high] - counts[low]
    return np.where(total > 0, (sums[high] - sums[low]) / np.maximum(total, 1), np.nan)
