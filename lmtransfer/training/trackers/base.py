"""The interface between the training loop and a tracker, and the interface of a tracker's service.

The loop uses a ``Tracker``. ``Jsonl`` is one, and so is ``ServiceGuard``, which stands between the loop and a
``Service``, a library such as wandb. A new service needs a subclass of ``Service`` and a file in ``conf/tracker``.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from typing_extensions import TypedDict

from lmtransfer.config.types import Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.machine import naming
from lmtransfer.system.safe_files import read_json_lines

#: How a run ended.
Outcome = Literal["finished", "interrupted", "failed"]


class Tracker(Protocol):
    """Receives one record per logged step, on rank 0 only."""

    def rewind(self, step: int) -> None:
        """Prepare for the records after ``step``, from which the run resumes."""
        ...

    def log(self, record: Mapping[str, Any]) -> None:
        """Write one record; it contains at least ``step``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a service records.

    Attributes:
        name: path of the run relative to ``output_root``, such as ``finetune/imdb/control/seed-1``.
        group: name shared by the runs of a sweep, a study or several seeds, such as ``finetune/imdb``.
    """

    name: str
    group: str
    command: str
    folder: Path
    output_root: Path
    config: Mapping[str, Any]

    @property
    def service_files(self) -> Path:
        """The folder in the run directory for files that services keep."""
        return self.folder / "trackers"


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service's record of a run.

    Attributes:
        place: where the user finds the record: an address or a command.
        step: last step of the record; -1 if it has no steps; None if the service cannot tell.
    """

    id: str
    place: str
    step: int | None = None


class Service(ABC):
    """A service that records runs; its methods are called one by one, in one thread, and may raise any error."""

    @abstractmethod
    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        """Begin the record of a run, or continue it.

        Args:
            record: id of the record to continue; None for a run without a record.
            step: last step known to be in the record, which may contain one more; -1 without a record.
        """

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the values logged at a step; step numbers only increase, even across resumed runs."""

    @abstractmethod
    def finish(self, outcome: Outcome, result: Mapping[str, float], *, step: int) -> None:
        """Write the numbers in the result (a failed run has none) at the last step, and close the record."""


def leaves(values: Mapping[str, Any], *, separator: str, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings, named by their path: ``{"a": {"b": 1}}`` gives ``{"a.b": 1}``."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            entries |= leaves(value, separator=separator, prefix=f"{prefix}{name}{separator}")
        else:
            entries[f"{prefix}{name}"] = value
    return entries


def numbers_in(values: Mapping[str, Any], *, prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of nested mappings, named by path: ``{"a": {"b": 1}}`` gives ``{"a/b": 1.0}``."""
    return {
        name: float(value)
        for name, value in leaves(values, separator="/", prefix=prefix).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class _Record(TypedDict):
    step: Whole


class Jsonl:
    """Appends one JSON object per line to ``metrics.jsonl`` and flushes it at once; non-finite numbers become null."""

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
