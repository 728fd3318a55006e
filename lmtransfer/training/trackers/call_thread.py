"""Calls in a thread of their own, so that a library that fails or does not answer stops nothing else."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from lmtransfer.system.printable import first_line


class CallThread:
    """Makes calls one after the other in a thread; after a call that raises, it makes no more.

    Args:
        name: name of the thread.
        patience: longest time that one call may take, in seconds. A call that takes longer cannot be stopped: it is
            left alone, and does not keep the process from ending.
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
        """Add a call; does not wait for it."""
        with self._changed:
            self._calls.append(function)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all calls are made, or until there is a problem."""
        with self._changed:
            while self._calls and self.problem() is None:
                self._changed.wait(timeout=0.2)

    def stop(self) -> None:
        """End the thread after the calls that are left."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def problem(self) -> str | None:
        """Why no more calls are made, in one line; None if all is well."""
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
