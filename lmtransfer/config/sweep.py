"""Sweeps (``-m``): whether a run is a point of one, and the name of its run directory."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

_LONGEST = 120


def in_sweep() -> bool:
    """Whether this run is a point of a sweep; a finished point is skipped, and a started one is resumed."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def sweep_name(name: str) -> str:
    """The name of this run: ``name`` itself, or in a sweep ``name/<the swept keys and their values>``.

    Args:
        name: the configured name.

    Returns:
        For example ``imdb/objective.mask_prob=0.15``. Points of a sweep always have different names.
    """
    if not in_sweep():
        return name
    suffix = point_suffix(HydraConfig.get().job.override_dirname)
    return f"{name}/{suffix}" if suffix else name


def point_suffix(overrides: str) -> str:
    """The overrides of a point as a file name, without spaces and slashes, and not too long.

    A digest is added if the text was changed, so that different overrides have different names.
    """
    unquoted = overrides.replace("'", "")
    clean = re.sub(r"[^\w.,=+@-]+", "-", unquoted)[:_LONGEST]
    return clean if clean == unquoted else f"{clean}-{zlib.crc32(overrides.encode()):08x}"


@dataclass(slots=True)
class Point:
    """The outcome of one run of a sweep; saved as a file, since some launchers run points in other processes.

    Attributes:
        number: position in the sweep, from 0.
        label: the swept keys and their values.
        run_dir: the run directory, if one was made.
        error: the error that stopped it, or None.
    """

    number: int
    label: str
    run_dir: Path | None = None
    error: str | None = None

    def write(self, folder: Path) -> None:
        """Write the outcome to ``folder``, for ``read_points``."""
        run_dir = None if self.run_dir is None else str(self.run_dir)
        content = {"number": self.number, "label": self.label, "run_dir": run_dir, "error": self.error}
        (folder / f"point-{self.number}.json").write_text(json.dumps(content), encoding="utf-8")


def read_points(folder: Path) -> list[Point]:
    """The finished points, in the order of the sweep."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("point-*.json")]
    points = [
        Point(item["number"], item["label"], Path(item["run_dir"]) if item["run_dir"] else None, item["error"])
        for item in contents
    ]
    return sorted(points, key=lambda point: point.number)
