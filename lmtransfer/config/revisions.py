"""Revisions: the checkpoints that a pretraining run keeps at chosen token counts, and their names.

``train.save_at=[0,100k,1M]`` saves revisions, and ``init=runs/pretrain/first@1M`` starts from one of them.
"""

from __future__ import annotations

import re
from pathlib import Path

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_COUNT = re.compile(r"(\d+)(?:\.(\d+))?([kMBT]?)")


def read_count(count: int | str) -> int | None:
    """Read a number of tokens; None if the text is not a number.

    Args:
        count: a whole number, or a text such as ``1000000``, ``100k``, ``1M`` or ``2.5B``.
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
    """Write the shortest text that ``read_count`` reads as this number: ``1M``, ``2.5M``, ``1234567``."""
    best = str(tokens)
    for unit, scale in _UNITS.items():
        decimals = len(str(scale)) - 1
        text = f"{tokens // scale}.{tokens % scale:0{decimals}d}".rstrip("0").rstrip(".") if decimals else best
        best = min(best, text + unit, key=len)
    return best


def split_revision(path_and_revision: str) -> tuple[str, int | None]:
    """Split the user's name for a run into its directory and its revision in tokens.

    Returns:
        The path; the number of tokens, or None if the path names no revision.
    """
    path, at, revision = path_and_revision.rpartition("@")
    tokens = read_count(revision)
    if not at or tokens is None or Path(path_and_revision).expanduser().is_dir():
        return path_and_revision, None
    return path, tokens


def with_revision(path: str | Path, tokens: int | None) -> str:
    """Return the reverse of ``split_revision``."""
    return str(path) if tokens is None else f"{path}@{count_text(tokens)}"


def babylm_name(words: int) -> str:
    """Return the BabyLM challenge's name of a revision, by the words it has read: ``chck_10M``."""
    return f"chck_{words / 1e6:g}M"
