"""From a command line to a run: composed once, or by Hydra's own command line if needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lmtransfer.cli import main
from lmtransfer.launch import command_line, composing


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count how often each of the two ways is used."""
    counts = {"composed": 0, "by Hydra": 0}

    def count(owner: Any, name: str, which: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            counts[which] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    count(composing, "compose_with_hydra", "composed")
    count(command_line.hydra, "main", "by Hydra")
    return counts


@pytest.mark.parametrize(
    ("words", "composed", "by_hydra"),
    [
        (["what=[models]"], 1, 0),
        (["models"], 1, 0),
        (["what=[models]", "-cn", "list"], 1, 0),
        (["what=[models]", "-m"], 3, 0),  # the place, the first point, and the check of each point
        (["what=[models]", "--cfg", "job"], 0, 1),
    ],
)
def test_a_single_run_is_composed_once(
    words: list[str], composed: int, by_hydra: int, counted: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *words]) == 0
    assert counted == {"composed": composed, "by Hydra": by_hydra}
    assert capsys.readouterr().out
