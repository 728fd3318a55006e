"""Signals in a sweep whose points run in other processes of this machine: each point saves, and no other begins."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from lmtransfer.sweeps.plan import Plan
from lmtransfer.system import interrupts

_STOP = "stop"
_RUNNING = "running-"
_PATIENCE = 3.0  # seconds in which a further signal is part of the first


def is_stopping(folder: Path) -> bool:
    """Whether the sweep with this exchange folder was interrupted."""
    return (folder / _STOP).exists()


def stop(folder: Path) -> None:
    """Let no other point begin."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _STOP).touch()


@contextmanager
def passed_on(plan: Plan, folder: Path) -> Iterator[None]:
    """Inside the block, the first signal is passed on to the running points, and this process waits for them.

    The points save and end, and no other point begins. A second signal ends this process at once. If the points run in
    this process or on other machines, signals are handled as without this block.

    Args:
        plan: the plan of the sweep.
        folder: the folder through which the processes of the sweep exchange files.
    """
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if first and time.monotonic() - first[0] < _PATIENCE:
            return
        if first:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        first.append(time.monotonic())
        stop(folder)
        with contextlib.suppress(OSError):
            os.write(2, b"\nthe running points of the sweep save and end; a second signal ends them at once\n")
        for path in folder.glob(f"{_RUNNING}*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix(_RUNNING)), signal.SIGTERM)

    if not (plan.is_parallel and plan.is_local) or threading.current_thread() is not threading.main_thread():
        yield
        return
    trapped = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # nohup
    for number in trapped:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in trapped:
            signal.signal(number, before[number])


@contextmanager
def as_point(folder: Path) -> Iterator[None]:
    """The process of a point inside the block: it heeds signals as a command does, and ends when its parent is gone."""
    running = folder / f"{_RUNNING}{os.getpid()}"
    running.touch()
    over = threading.Event()
    parent = os.getppid()
    threading.Thread(target=_follow, args=(parent, over), daemon=True).start()
    try:
        with interrupts.trapped():
            yield
    finally:
        over.set()
        running.unlink(missing_ok=True)
        if os.getppid() != parent:  # nobody waits for this process
            os._exit(1)


def _follow(parent: int, over: threading.Event) -> None:
    while not over.wait(1.0):
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return
