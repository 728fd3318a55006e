"""A toy command with its own configs, run in this process exactly as ``lmtransfer`` runs the real ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field

from lmtransfer import cli
from lmtransfer.config import main_help, paths
from lmtransfer.config.settings import COMMANDS, CommandSettings, TrainSettings
from lmtransfer.config.sweep_names import sweep_name
from lmtransfer.launch import run_once
from lmtransfer.reporting import result_tables

FILES = {
    "toy.yaml": """
        # A toy that trains nothing,
        # on two lines.
        # lmtransfer toy seed=1     one example
        defaults:
          - model: small
          - _self_
          - experiment: null

        name: toy
        seed: 0
        text: null
        init: null
        train:
          steps: null
          seconds: 600
    """,
    "model/small.yaml": "# A small one\n_target_: lmtransfer.models.bert.Pooler\ndim: 8\n",
    "model/large.yaml": "# A large one\ndefaults: [small]\ndim: 64\n",
    "experiment/quick.yaml": "# @package _global_\n# A quick recipe\ntrain:\n  steps: 7\n",
}


class ToySettings(CommandSettings):
    """The settings of the toy command."""

    name: str = Field(default="", description="of the run")
    seed: int = 0
    text: str | None = None
    init: str | None = None
    train: TrainSettings = TrainSettings()


class Toy:
    """What the toy command was called with, and what it does.

    Attributes:
        configs: one a run, with ``run_name`` and the effective ``train`` in it.
        swept: the finished runs that the table of a sweep was given.
        failed: the labels that it was given.
        conf: its config folder.
        behave: called with the settings of each run; may raise.
        check: called with the settings of each point before a sweep starts; may raise.
    """

    def __init__(self, conf: Path) -> None:
        self.conf = conf
        self.configs: list[dict[str, Any]] = []
        self.swept: list[list[Path]] = []
        self.failed: list[list[str]] = []
        self.behave: Callable[[ToySettings], Any] = lambda settings: None
        self.check: Callable[[ToySettings], Any] = lambda settings: None

    def run(self, settings: ToySettings) -> Any:
        self.configs.append({**settings.plain(), "run_name": sweep_name(settings.name)})
        self.behave(settings)
        return Path("runs") / sweep_name(settings.name)

    def print_points(self, run_once: str, run_dirs: list[Path], failed: list[str]) -> None:
        self.swept.append(run_dirs)
        self.failed.append(failed)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy command, started by the ``lmtransfer`` fixture."""
    found = Toy(tmp_path / "conf")
    for name, text in FILES.items():
        path = found.conf / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip())
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    module = SimpleNamespace(run=found.run, check_settings=lambda settings: found.check(settings))
    monkeypatch.setattr(paths, "conf_dir", lambda: found.conf)
    monkeypatch.setattr(main_help, "commands", lambda: {"toy": "A toy", "other": "Another"})
    monkeypatch.setattr(run_once, "module_of", lambda run_once: module)
    monkeypatch.setattr(result_tables, "print_points", found.print_points)
    monkeypatch.setitem(COMMANDS, "toy", ToySettings)  # type: ignore[misc]
    return found


@pytest.fixture
def lmtransfer(toy: Toy, capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Run ``lmtransfer <words>`` in this process: ``.code``, ``.out``, ``.err``."""

    def call(*words: str) -> SimpleNamespace:
        before = list(sys.argv)
        try:
            code: Any = cli.main(words)
        except SystemExit as leave:
            code = leave.code
        assert sys.argv == before
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call
