"""Components and config folders for the tests of configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import system  # noqa: F401 - a foreign object that a hostile config might try to reach through this module
from pathlib import Path  # noqa: F401 - and a foreign class
from textwrap import dedent
from typing import Literal

import pytest

from lmtransfer.config import component


class Part:
    """A nested component."""

    def __init__(self, *, size: int, shape: tuple[int, ...] = (1,)) -> None:
        self.size, self.shape = size, shape


class Net:
    """A component with a runtime argument and a nested one."""

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int = 8,
        rate: float = 0.1,
        norm: Literal["pre", "post"] = "pre",
        limit: int | None = None,
        part: Part | None = None,
        parts: list[Part] | None = None,
    ) -> None:
        self.vocab_size, self.dim, self.rate, self.norm, self.limit = vocab_size, dim, rate, norm, limit
        self.part, self.parts = part, parts


class Inherits(Net):
    """Takes what its parent takes."""


def allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow configs to name these classes, as if they were bases of components that the package declares."""
    monkeypatch.setenv("LMTRANSFER_ALLOW", "fakes.configs")
    for key, own in {
        "model": ("fakes.configs.Net", "fakes.configs.Part"),
        "objective.losses": ("fakes.configs.Part",),
    }.items():
        monkeypatch.setitem(component.BASES, key, (*component.BASES[key], *own))  # type: ignore[arg-type]


def not_a_class() -> None:
    """Refused as a target."""


def check_problems(problems: Sequence[str], expected: Mapping[str, Sequence[str]]) -> None:
    """Exactly these keys must have a problem, one each, which names what is expected of it, whatever its words."""
    found = dict(problem.split(": ", 1) for problem in problems)
    assert len(found) == len(problems), f"a key has several problems: {problems}"
    assert found.keys() == expected.keys(), f"found {sorted(found)}, expected {sorted(expected)}"
    for key, names in expected.items():
        missing = [name for name in names if name not in found[key]]
        assert not missing, f"{key}: {found[key]!r} does not name {missing}"


def write_tree(folder: Path, files: dict[str, str]) -> Path:
    """Write files below ``folder``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip(), encoding="utf-8")
    return folder
