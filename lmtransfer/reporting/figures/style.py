"""The style of all figures: colors for color-blind readers, plain axes, and labels beside the lines.

The functions import matplotlib themselves, so that importing this module is fast. They use the Agg canvas instead of
``pyplot``, which has global state.
"""

from __future__ import annotations

import io
import os
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.system.durable import write_bytes
from lmtransfer.system.printable import in_percent

#: Okabe and Ito (2008), "Color Universal Design", without yellow, which is invisible on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Markers of points, each with the character that represents the marker in labels.
MARKERS = {"o": "\u25cf", "s": "\u25a0", "D": "\u25c6", "^": "\u25b2", "v": "\u25bc", "P": "\u271a", "X": "\u2716"}
GRAY = "#8A8A8A"
INK = "#222222"
LIGHT_BLUE = "#B9D6EA"
#: Colors of bars by transfer method; any other method has the color of ``finetuned``.
FILLS = {
    "majority": "#D9D9D9",
    "baseline": "#BDBDBD",
    "control": GRAY,
    "frozen": PALETTE[4],
    "finetuned": PALETTE[0],
}
#: Dash pattern of reference lines.
DASHES: Any = (0, (4, 3))

#: Maximum number of curves in a figure, to keep them distinguishable. The title says if curves are omitted.
MAX_CURVES = 7
#: Letters per inch in a title.
_LETTERS_PER_INCH = 11
#: Maximum number of dots on a seed's line, so that the line stays visible.
_MAX_DOTS = 25

_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "text.parse_math": False,  # a run named "$x$" is shown literally
    "svg.fonttype": "none",  # text stays text: small, searchable, testable
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "savefig.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class SavedFigure:
    """A figure on disk."""

    name: str
    title: str
    svg: Path
    png: Path


@contextmanager
def figure_style(name: str) -> Iterator[None]:
    """Apply the style while a figure is drawn and saved; ``name`` determines the ids inside the SVG."""
    backend = os.environ.pop("MPLBACKEND", None)  # an unknown backend would break the import
    import matplotlib

    if backend is not None:
        os.environ["MPLBACKEND"] = backend
    with matplotlib.rc_context({**_RC, "svg.hashsalt": f"lmtransfer-{name}"}):
        yield


def new_figure(title: str, *, width: float, height: float) -> Any:
    """Create a figure of ``width`` x ``height`` inches with a title, which is wrapped if it is long."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    lines = textwrap.wrap(title, int(_LETTERS_PER_INCH * width))
    figure.suptitle("\n".join(lines), x=0.008, ha="left", fontsize=10.5, fontweight="bold")
    return figure


def subtitle(axes: Any, text: str) -> None:
    """Write an explanation of the marks in small gray letters above the axes."""
    axes.set_title(text, color="#666666", fontsize=8.5)


def seed_dots(
    axes: Any, xs: Sequence[float] | np.ndarray, ys: Sequence[float] | np.ndarray, ink: str, *, size: float = 3.4
) -> Any:
    """Draw a white dot with a colored edge for each seed."""
    (dots,) = axes.plot(xs, ys, "o", color="white", markeredgecolor=ink, markersize=size, linestyle="none", zorder=5)
    return dots


def save(figure: Any, folder: Path, name: str, title: str) -> SavedFigure:
    """Write ``<name>.svg`` and ``<name>.png`` to ``folder``; identical figures give identical files."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    for path, metadata in ((svg, nothing), (png, {"Software": None})):
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph ")  # characters missing from the font appear as boxes
            figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        write_bytes(path, buffer.getvalue())
    return SavedFigure(name=name, title=title, svg=svg, png=png)


def color(index: int) -> str:
    """Return the color of the line or bar at ``index``; colors repeat after seven."""
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """Return the marker of the line at ``index``; the first lines differ in it, and so do lines of the same color."""
    return list(MARKERS)[(index + index // len(PALETTE)) % len(MARKERS)]


def count_text(drawn: int, runs: int) -> str:
    """State how many of the runs a figure shows."""
    if drawn < runs:
        return f"the first {drawn} of {runs} runs"
    return "1 run" if drawn == 1 else f"{drawn} runs"


def with_count(title: str, runs: int) -> str:
    """Add to a title how many runs are shown if there are more than ``MAX_CURVES``."""
    return title if runs <= MAX_CURVES else f"{title}, {count_text(MAX_CURVES, runs)}"


def unit(metric: str) -> tuple[float, str]:
    """Return the factor that converts a metric to its displayed unit, and the heading of its axis."""
    return (100.0, f"{metric} (%)") if metric == "share" or in_percent(metric) else (1.0, metric)


def spread_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Return the closest positions, in least squares, that have the same order and are at least ``gap`` apart."""
    from scipy.optimize import isotonic_regression

    order, steps = np.argsort(positions, kind="stable"), gap * np.arange(len(positions))
    places = np.empty(len(positions))
    places[order] = isotonic_regression(np.asarray(positions, dtype=float)[order] - steps).x + steps
    return [float(place) for place in places]


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]], *, font_size: float = 8.5) -> None:
    """Write the label of each line just to the right of the axes, at the height where the line ends.

    Args:
        ends: the y value in data units, the text and the color for each line.
    """
    if not ends:
        return
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    gap = 1.45 * font_size / max(height, 1.0)
    heights = [min(max((y - low) / (high - low), 0.0), 1.0) for y, _, _ in ends]
    for (_, text, ink), y in zip(ends, spread_apart(heights, gap), strict=True):
        axes.text(
            1.02,
            y,
            text,
            transform=axes.transAxes,
            color=ink,
            fontsize=font_size,
            va="center",
            ha="left",
            clip_on=False,
        )


def dot_places(num: int) -> np.ndarray:
    """Return the indices of at most ``_MAX_DOTS`` of ``num`` points, equally spaced and including the last one."""
    return np.arange(num - 1, -1, -max(1, -(-num // _MAX_DOTS)))[::-1]


def shorten(text: str, limit: int = 34) -> str:
    """Replace the middle of a text with ``...`` if the text is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    head = (limit - 3) // 2
    return f"{text[:head]}...{text[len(text) - (limit - 3 - head) :]}"


def slug(text: str) -> str:
    """Convert text to a safe part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"
