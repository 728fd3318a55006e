"""Worker processes, and their reaction when their parent is interrupted or killed."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import connection, get_context, parent_process
from types import ModuleType
from typing import Any, TypeVar

from lmtransfer.system import door, ranks
from lmtransfer.system.cores import usable_cores
from lmtransfer.system.interrupts import SIGNALS, hold_back_signals

T = TypeVar("T")


def default_num_workers() -> int:
    """Return the number of usable cores for each process that ``torchrun`` started on this machine."""
    return max(1, usable_cores() // ranks.local_world_size())


class Workers:
    """Processes that call functions; a process is never interrupted while it starts."""

    def __init__(self, executor: ProcessPoolExecutor, *, with_main: bool) -> None:
        self._executor, self._with_main = executor, with_main

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call ``function`` in a worker; the first call starts a process."""
        without_main = nullcontext() if self._with_main else _without_main()
        with hold_back_signals(), without_main:  # a child interrupted while starting would print a traceback
            return self._executor.submit(function, *arguments)


@contextmanager
def workers(num_workers: int, set_up: Callable[..., None] | None = None, *arguments: Any) -> Iterator[Workers]:
    """Provide worker processes inside the block; at its end, running calls finish and pending calls are dropped.

    The processes import the main module only if ``set_up`` or its arguments are defined there, because the main module
    may be a user's script without a main guard.
    """
    executor = ProcessPoolExecutor(
        num_workers, mp_context=get_context("spawn"), initializer=_start, initargs=(door.state(), set_up, arguments)
    )
    try:
        yield Workers(executor, with_main=b"__main__" in pickle.dumps((set_up, arguments)))
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep processes that start inside the block from importing the main module."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start(closed: door.Door | None, set_up: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """Let the parent handle signals, and end this process when the parent is gone (a killed parent cannot end it)."""
    for number in SIGNALS:
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()
    door.take_over(closed)
    if set_up is not None:
        set_up(*arguments)


def _leave_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
