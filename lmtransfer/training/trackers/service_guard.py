"""A guard around a service, so that the service cannot slow down, stop or change a run.

The service works in its own thread. If it raises an error or does not answer, the guard prints one line, and the run
continues without the service. A file in the run directory holds the id of the record and its last step, so that a
resumed run continues the same record: steps already in the record are not sent again, even if they are trained again,
and missing steps are read from ``metrics.jsonl``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge
from typing_extensions import TypedDict

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system import door
from lmtransfer.system.printable import first_line
from lmtransfer.system.safe_files import read_json
from lmtransfer.training.trackers.base import Jsonl, Outcome, Service, ServiceRecord, TrackedRun, numbers_in

#: Maximum time that a service may take for one call, in seconds; the first call imports its library.
PATIENCE = 60.0


class CallThread:
    """Executes calls one after the other in a thread, up to the first call that raises.

    Args:
        patience: maximum time that one call may take, in seconds. A call that takes longer cannot be stopped; it is
            abandoned and does not prevent the process from ending.
    """

    def __init__(self, name: str, *, patience: float) -> None:
        self.patience = patience
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._call_start: float | None = None
        self._error: BaseException | None = None
        self._stopping = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[], None]) -> None:
        """Add a call without waiting for it."""
        with self._changed:
            self._calls.append(function)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all calls are finished, or until there is a problem."""
        with self._changed:
            while self._calls and self.problem() is None:
                self._changed.wait(timeout=0.2)

    def stop(self) -> None:
        """End the thread after the remaining calls."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def problem(self) -> str | None:
        """Return the reason why no more calls are executed, in one line; None if there is no problem."""
        if self._error is not None:
            return first_line(self._error)
        start_time = self._call_start
        if start_time is not None and time.monotonic() - start_time > self.patience:
            return f"no answer for {self.patience:g} seconds"
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._stopping)
                if not self._calls:
                    return
                function, self._call_start = self._calls[0], time.monotonic()
            try:
                with door.free_thread():
                    function()
            except BaseException as error:  # shown by `problem`; some libraries raise SystemExit
                self._error = error
            with self._changed:
                self._calls.popleft()
                self._call_start = None
                if self._error is not None:
                    self._calls.clear()
                    self._stopping = True
                self._changed.notify_all()


class _Saved(TypedDict):
    id: str
    step: Annotated[int, Ge(-1)]


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class ServiceGuard:
    """Passes the records of a run to a service."""

    def __init__(
        self,
        service: Service,
        *,
        name: str,
        run: TrackedRun,
        patience: float = PATIENCE,
        say: Callable[[str], None] = _print,
    ) -> None:
        self.service, self.name, self.run, self.say = service, name, run, say
        self._path = run.service_files / f"{name}.json"
        self._thread = CallThread(f"tracker {name}", patience=patience)
        self._is_off = False
        self._record: ServiceRecord | None = None
        self._step = -1

    def begin(self) -> str | None:
        """Start or resume the record of the run, and return where the user finds it; None if the service failed."""
        self._call(self._begin, wait=True)
        return None if self._is_off or self._record is None else self._record.place

    def rewind(self, step: int) -> None:
        """Pass on the records up to ``step`` that the service lacks."""
        for record in Jsonl(folder=self.run.folder).records(step):
            self.log(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """Pass on one record, unless the service already has its step; does not wait for the service."""
        self._call(partial(self._log, dict(record)))

    def finish(self, outcome: Outcome, result: Mapping[str, float]) -> None:
        """Pass on the numbers in the result, wait until the service has received everything, and end."""
        self._call(lambda: self.service.finish(outcome, result, step=max(0, self._step)), wait=True)
        self._thread.stop()

    def _call(self, function: Callable[[], None], *, wait: bool = False) -> None:
        """Add a call, and report it if the service has failed in the meantime."""
        if self._is_off:
            return
        self._thread.call(function)
        if wait:
            with _quiet():
                self._thread.wait()
        problem = self._thread.problem()
        if problem is not None:
            self._is_off = True
            self.say(
                f"warning: tracker {self.name} is off: {problem}; the run continues, and metrics.jsonl has all numbers"
            )

    def _begin(self) -> None:
        id_before, step_before = self._read()
        self.run.service_files.mkdir(parents=True, exist_ok=True)
        self._record = self.service.begin(self.run, record=id_before, step=step_before)
        known = step_before if self._record.id == id_before else -1
        self._step = known if self._record.step is None else self._record.step
        self._write()

    def _log(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        if step > self._step:
            self.service.log(step, numbers_in({name: value for name, value in record.items() if name != "step"}))
            self._step = step
            self._write()

    def _read(self) -> tuple[str | None, int]:
        """Return the id of the run's record and its last step; None and -1 if there is no record."""
        if not self._path.exists():
            return None, -1
        saved = read_json(self._path, _Saved, error=RunDirectoryError)
        return saved["id"], saved["step"]

    def _write(self) -> None:
        """Save the record's id and last step atomically, but without flushing, because this happens at each step."""
        assert self._record is not None
        staged = self._path.with_name(f".{self._path.name}.tmp")
        staged.write_text(json.dumps({"id": self._record.id, "step": self._step}) + "\n", encoding="utf-8")
        staged.replace(self._path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress a library's output while the run waits for it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
