"""What the functions return: run directories and reports, which can be given wherever a path is expected."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.reporting.runs.collect import read_metrics
from lmtransfer.runs.result import JointResult, RunResult


@dataclass(frozen=True)
class Run(os.PathLike[str]):
    """A run directory.

    Attributes:
        path: its path.
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def result(self) -> RunResult:
        """Metrics, durations and sizes, from ``result.json``.

        Raises:
            RunDirectoryError: there is no result yet, or it is damaged.
        """
        return RunResult.read(self.path / "result.json")

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the run, from ``config.yaml``.

        Raises:
            RunDirectoryError: it is missing or damaged.
        """
        from lmtransfer.runs.run_directory import RunDirectory  # imports torch

        return RunDirectory.open(self.path).read_config()

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """The logged steps: ``step``, ``tokens``, ``seconds``, ``loss``, ``validation/loss`` and others, by name.

        Lines that cannot be read are left out; a run of several seeds has its steps in the folders of the seeds.
        """
        return list(read_metrics(self.path / "metrics.jsonl", [])[0])


class TransferRun(Run):
    """The run directory of a probe or of finetuning; with several seeds it has a folder for each."""

    @property
    def result(self) -> JointResult:
        """Mean, deviation, control and difference over all seeds, from ``result.json``.

        Raises:
            RunDirectoryError: there is no result yet, or it is damaged.
        """
        return JointResult.read(self.path / "result.json")


@dataclass(frozen=True)
class Report(os.PathLike[str]):
    """The folder of a report.

    Attributes:
        path: the folder, with ``report.html``, ``report.md``, ``report.json`` and ``figures/``.
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def page(self) -> Path:
        """The HTML page with everything."""
        return self.path / "report.html"

    @property
    def content(self) -> dict[str, Any]:
        """The ``answer`` in words, the ``rows`` of the table and the ``sweeps``, in plain units."""
        loaded: dict[str, Any] = json.loads((self.path / "report.json").read_text(encoding="utf-8"))
        return loaded

    @property
    def figures(self) -> dict[str, Path]:
        """The figures as SVG files, by name."""
        return {path.stem: path for path in sorted((self.path / "figures").glob("*.svg"))}
