"""The names of revisions, which are the copies of a model that pretraining keeps at chosen token counts.

``train.save_at=[0,100k,1M]`` keeps three revisions, and ``init=runs/pretrain/first@1M`` starts from the last.
"""

from __future__ import annotations

import re
from pathlib import Path

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"(\d+)(?:\.(\d+))?([kMBT]?)")


def read_count(count: int | str) -> int | None:
    """Parse a number of tokens; return None if ``count`` is not a whole number.

    Args:
        count: an integer, or text such as ``1000000``, ``100k``, ``1M`` or ``2.5B``.
    """
    if isinstance(count, int):
        return count
    match = _COUNT.fullmatch(count)
    if match is None:
        return None
    whole, decimals, unit = match[1], match[2] or "", match[3]
    scaled, rest = divmod(int(whole + decimals) * _UNITS[unit], 10 ** len(decimals))
    return None if rest else scaled


def count_text(tokens: int) -> str:
    """Return the shortest text from which ``read_count`` reads this number: ``1M``, ``2.5M``, ``1234567``."""
    best = str(tokens)
    for unit, scale in _UNITS.items():
        decimals = len(str(scale)) - 1
        text = f"{tokens // scale}.{tokens % scale:0{decimals}d}".rstrip("0").rstrip(".") if decimals else best
        best = min(best, text + unit, key=len)
    return best


def split_revision(path_and_revision: str) -> tuple[str, int | None]:
    """Split ``<run directory>@<tokens>`` at the ``@``.

    Returns:
        The run directory, and the number of tokens, or None if no revision is named.
    """
    path, at, revision = path_and_revision.rpartition("@")
    tokens = read_count(revision)
    if not at or tokens is None or Path(path_and_revision).expanduser().is_dir():
        return path_and_revision, None
    return path, tokens


def with_revision(path: str | Path, tokens: int | None) -> str:
    """Join a run directory and a number of tokens; the inverse of ``split_revision``."""
    return str(path) if tokens is None else f"{path}@{count_text(tokens)}"


def babylm_name(words: int) -> str:
    """Return the name that the BabyLM challenge gives to the checkpoint after ``words`` words: ``chck_10M``."""
    return f"chck_{words / 1e6:g}M"
