"""The names of the runs in a sweep (``-m``)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LONGEST = 120
#: The settings that distinguish the running point from the others of its sweep; None outside a sweep.
_point: ContextVar[str | None] = ContextVar("point", default=None)


@contextmanager
def as_point(overrides: str | None) -> Iterator[None]:
    """Make the command inside the block a point of a sweep, unless ``overrides`` is None.

    Args:
        overrides: the settings that distinguish the point, such as ``seed=1,train.steps=3``; "" if its name does.
    """
    token = _point.set(overrides)
    try:
        yield
    finally:
        _point.reset(token)


def in_sweep() -> bool:
    """Whether this run is a point of a sweep, which skips finished points and resumes the others."""
    return _point.get() is not None


def sweep_name(name: str) -> str:
    """Return the name of this run: ``name``, or a distinct ``name/<key>=<value>,...`` for each point of a sweep."""
    overrides = _point.get()
    return f"{name}/{point_suffix(overrides)}" if overrides else name


def point_suffix(overrides: str) -> str:
    """Convert the overrides of a point to a short file name without spaces and slashes.

    If characters are replaced or cut off, a checksum is appended, so that different overrides have different names.
    """
    unquoted = overrides.replace("'", "")
    clean = re.sub(r"[^\w.,=+@-]+", "-", unquoted)[:_LONGEST]
    return clean if clean == unquoted else f"{clean}-{zlib.crc32(overrides.encode()):08x}"
