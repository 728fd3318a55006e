"""A service that keeps its records in memory, and fails where a test wants it to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from lmtransfer.training.trackers.base import Outcome, Service, ServiceRecord, TrackedRun

#: The name of each method is one of these; a service fails or waits in one of them.
CALLS = ("begin", "log", "finish")


@dataclass
class Kept:
    """What the service has of one run."""

    run: TrackedRun
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    result: Mapping[str, float] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.rows]


class FakeService(Service):
    """Keeps records by id.

    Args:
        fails_in: the method that raises.
        waits_in: the method that does not answer.
        knows_steps: whether it tells the last step of a record.
    """

    kept: ClassVar[dict[str, Kept]] = {}
    numbers: ClassVar[Iterator[int]] = count()

    def __init__(self, *, fails_in: str | None = None, waits_in: str | None = None, knows_steps: bool = False) -> None:
        self.fails_in, self.waits_in, self.knows_steps = fails_in, waits_in, knows_steps

    def begin(self, run: TrackedRun, *, record: str | None, step: int) -> ServiceRecord:
        self._perhaps_fail("begin")
        if record not in self.kept:
            record = f"{run.name} {next(self.numbers)}"
            self.kept[record] = Kept(run)
        self.mine = self.kept[record]
        known = max([-1, *self.mine.steps]) if self.knows_steps else None
        return ServiceRecord(record, "in memory", known)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._perhaps_fail("log")
        self.mine.rows.append((step, dict(numbers)))

    def finish(self, outcome: Outcome, result: Mapping[str, float], *, step: int) -> None:
        self._perhaps_fail("finish")
        self.mine.outcomes.append(outcome)
        self.mine.result = dict(result)

    def _perhaps_fail(self, call: str) -> None:
        if self.waits_in == call:
            time.sleep(60)
        if self.fails_in == call:
            raise SystemExit(f"no room in {call}\nand a second line")


def by_name() -> dict[str, Any]:
    """What services have kept, by the name of the run; each run must have a single record."""
    names = [kept.run.name for kept in FakeService.kept.values()]
    assert len(names) == len(set(names)), names
    return {kept.run.name: kept for kept in FakeService.kept.values()}
