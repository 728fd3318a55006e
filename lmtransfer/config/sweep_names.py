"""The names of the runs in a sweep (``-m``)."""

from __future__ import annotations

import re
import zlib

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

_LONGEST = 120


def in_sweep() -> bool:
    """Whether this run is a point of a sweep, which skips finished points and resumes the others."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def sweep_name(name: str) -> str:
    """Return the name of this run: ``name``, or a distinct ``name/<key>=<value>,...`` for each point of a sweep."""
    if not in_sweep():
        return name
    suffix = point_suffix(HydraConfig.get().job.override_dirname)
    return f"{name}/{suffix}" if suffix else name


def point_suffix(overrides: str) -> str:
    """Convert the overrides of a point to a short file name without spaces and slashes.

    If characters are replaced or cut off, a checksum is appended, so that different overrides have different names.
    """
    unquoted = overrides.replace("'", "")
    clean = re.sub(r"[^\w.,=+@-]+", "-", unquoted)[:_LONGEST]
    return clean if clean == unquoted else f"{clean}-{zlib.crc32(overrides.encode()):08x}"
