"""The run's own metrics: one JSON object per logged step, in ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from lmtransfer.config.types import Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.machine import naming
from lmtransfer.system.safe_files import read_json_lines


class _Record(TypedDict):
    step: Whole


class Jsonl:
    """Writes one JSON object per line and flushes it at once; non-finite numbers become null.

    Args:
        folder: the run directory; lines are appended to its ``metrics.jsonl``.
    """

    def __init__(self, *, folder: Path) -> None:
        self.path = Path(folder) / "metrics.jsonl"

    def rewind(self, step: int) -> None:
        """Truncate the file after the lines up to ``step``, removing a last line that a crash left incomplete."""
        if self.path.exists():
            content = b"".join(line for line, _ in self._lines(step))
            write_text(self.path, content.decode("utf-8", "replace"))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line."""
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain) + "\n")

    def records(self, step: int) -> list[dict[str, Any]]:
        """Return the records up to ``step``; an empty list if there is no file."""
        return [record for _, record in self._lines(step)] if self.path.exists() else []

    def _lines(self, step: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
        for number, line, record, problem in read_json_lines(self.path, _Record, error=RunDirectoryError, finite=False):
            if not line.endswith(b"\n") or (record is not None and record["step"] > step):
                return
            if record is None:
                raise RunDirectoryError(
                    f"{self.path}:{number}: {problem}; correct or delete that line, then continue with resume=true"
                )
            yield line, {**record}
