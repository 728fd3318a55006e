"""Trackers write the numbers of a run: always to ``metrics.jsonl``, on request also to TensorBoard."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lmtransfer.errors import RunDirectoryError, TrainingError
from lmtransfer.system.durable import write_text
from lmtransfer.system.machine import naming
from lmtransfer.system.optional import optional
from lmtransfer.untrusted.documents import read_json_lines
from lmtransfer.untrusted.schema import Fields, Whole

_RECORD = Fields({"step": Whole()})


class Tracker(Protocol):
    """Receives one record per logged step, on rank 0 only."""

    def rewind(self, step: int) -> None:
        """Remove the records after ``step``, from which the run resumes."""
        ...

    def log(self, record: Mapping[str, Any]) -> None:
        """Write one record; it contains at least ``step``."""
        ...

    def close(self) -> None:
        """Write all pending records."""
        ...


class Jsonl:
    """Writes one JSON object per line and flushes it at once; numbers that are not finite become null.

    Args:
        folder: the run directory; lines are appended to its ``metrics.jsonl``.
    """

    def __init__(self, *, folder: Path) -> None:
        self.path = Path(folder) / "metrics.jsonl"

    def rewind(self, step: int) -> None:
        """Cut the file back to the lines up to ``step``; also removes a last line that a crash left incomplete.

        Raises:
            RunDirectoryError: a line before ``step`` is not a valid record, or the file cannot be read.
        """
        if not self.path.exists():
            return
        kept: list[bytes] = []
        for number, line, record, problem in read_json_lines(self.path, _RECORD, error=RunDirectoryError, finite=False):
            if not line.endswith(b"\n") or (record is not None and record["step"] > step):
                break
            if problem is not None:
                raise RunDirectoryError(
                    f"{self.path}:{number}: {problem}; correct or delete that line, then continue with resume=true"
                )
            kept.append(line)
        write_text(self.path, b"".join(kept).decode("utf-8", "replace"))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")

    def close(self) -> None:
        """Do nothing: every line is already written."""


class TensorBoard:
    """Writes scalars for TensorBoard, in addition to ``metrics.jsonl``.

    Args:
        folder: the run directory; event files go to its folder ``tensorboard``.

    Raises:
        TrainingError: the package tensorboard is not installed.
    """

    needs_packages = ("tensorboard",)

    def __init__(self, *, folder: Path) -> None:
        optional("tensorboard", work="tracker=tensorboard", error=TrainingError)
        self.folder = Path(folder) / "tensorboard"
        self.purge_step: int | None = None
        self.writer: Any = None

    def rewind(self, step: int) -> None:
        """Hide the records after ``step``."""
        self.purge_step = step + 1

    def log(self, record: Mapping[str, Any]) -> None:
        """Write every number of the record at its step."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=self.purge_step)
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush the event file."""
        if self.writer is not None:
            self.writer.close()
