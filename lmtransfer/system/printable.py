"""Text from other people, escaped so that it cannot move the cursor, change colors or reverse a line."""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from pathlib import Path
from typing import Any

_UNESCAPED = frozenset("\n\t")

#: Error handler for encoding that replaces an unavailable character with a similar ASCII sign, or its code point.
IN_ASCII = "lmtransfer.in_ascii"
_LIKE = {0xB1: "+-", 0xD7: "x", 0x2013: "-", 0x2014: "-", 0x2022: "*", 0x2026: "~", 0x2581: "_"}
#: Frames, blocks and spinner dots.
_REPLACEMENTS = ((0x2500, 0x257F, "-"), (0x2580, 0x259F, "#"), (0x2800, 0x28FF, "*"))
#: Metrics between 0 and 1 that are shown as percentages.
_PERCENT = re.compile(r"(?:.*[/_])?(?:accuracy|f1|precision|recall|exact|heq_[qd]|unanswerable)")
#: (upper bound of the value, factor, suffix)
_COUNT_UNITS = ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G"), (math.inf, 1e12, "T"))


def printable(text: str) -> str:
    """Escape control and formatting characters in a text, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _UNESCAPED
        else character
        for character in text
    )


def printable_values(value: Any) -> Any:
    """Return plain data with ``printable`` applied to every string in it, including keys."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    return value


def first_line(error: BaseException) -> str:
    """Return the message of a library's error on one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def short_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside that folder, otherwise the whole path."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_like, error.object[error.start : error.end])), error.end


def _like(character: str) -> str:
    number = ord(character)
    replacement = next((sign for first, last, sign in _REPLACEMENTS if first <= number <= last), None)
    return _LIKE.get(number) or replacement or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(IN_ASCII, _in_ascii)


def in_percent(metric: str) -> bool:
    """Whether a metric is shown in percent: accuracies, F1 and similar metrics, but not correlations or losses."""
    return _PERCENT.fullmatch(metric.lower()) is not None


def format_metric(value: float, metric: str) -> str:
    """Return a metric's displayed value without unit: ``69.6`` for an accuracy of 0.696, ``4.082`` for a loss."""
    if not math.isfinite(value):
        return str(value)
    return f"{100 * value:.1f}" if in_percent(metric) else f"{value:.3f}"


def format_difference(value: float, metric: str) -> str:
    """Return a signed difference in the metric's displayed unit: ``+2.8`` points, ``-0.120``."""
    return f"{100 * value:+.1f}" if in_percent(metric) else f"{value:+.3f}"


def in_unit(points: float | None, metric: str) -> float | None:
    """Convert a displayed difference to the metric's own unit: 1 accuracy point is 0.01."""
    return points if points is None or not in_percent(metric) else points / 100


def count(value: float) -> str:
    """Return a count with a suffix for thousands: ``950``, ``13.1k``, ``3.2M``, ``1.2G``, ``5.9T``."""
    factor, unit = next((factor, unit) for limit, factor, unit in _COUNT_UNITS if abs(value) < 0.9995 * limit)
    scaled = value / factor
    return f"{scaled:.0f}{unit}" if not unit or abs(scaled) >= 100 else f"{scaled:.1f}{unit}"


def memory(num_bytes: float) -> str:
    """Return an amount of memory: ``612 MB``, ``12.5 GB``."""
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes < 9.995e8 else f"{num_bytes / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """Return a duration with one unit: ``45 s``, ``12.5 min``, ``3.2 h``."""
    scale, unit = time_unit(seconds)
    scaled = seconds / scale
    return f"{scaled:.0f} {unit}" if unit == "s" and scaled >= 10 else f"{scaled:.1f} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for durations up to ``seconds``: its length in seconds and its name."""
    if seconds < 120:
        return 1.0, "s"
    return (60.0, "min") if seconds < 7200 else (3600.0, "h")


def count_formatter() -> Any:
    """Return a matplotlib tick formatter for counts (``2M``, ``500k``)."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: count(value).replace(".0", ""))
