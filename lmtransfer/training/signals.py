"""Signals that request a stop during training. Training then finishes the current step and saves everything.

They are SIGTERM, SIGHUP (the terminal was closed), SIGUSR1 (Slurm's ``--signal=USR1@60``) and Ctrl-C, once or several
times: a further signal does not disturb the saving. Losing the reader of standard output or standard error has the
same effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from lmtransfer.errors import Interrupted
from lmtransfer.system.interrupts import decide, handle_lost_readers, handle_signals
from lmtransfer.training import process_group

_requested: signal.Signals | None = None


class StopDuringEvaluation(Exception):
    """A stop was requested during an evaluation; the loop saves, and a resumed run repeats the evaluation."""


def requested_stop() -> str | None:
    """Return the name of the signal that requested this process to stop, or None."""
    return None if _requested is None else _requested.name


def agreed_stop() -> str | None:
    """Return the name of a signal that requested *any* rank to stop, or None; the same on all ranks."""
    return first_stop(process_group.gather(requested_stop()))


def first_stop(of_ranks: Iterable[str | None]) -> str | None:
    """Return the first name among the ranks' results of ``requested_stop``, or None."""
    return next((name for name in of_ranks if name), None)


def _request(number: signal.Signals) -> None:
    global _requested
    _requested = _requested or number


def _handle(number: int, frame: FrameType | None) -> None:
    first = _requested is None
    _request(signal.Signals(number))
    what = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    hint = " (Ctrl-\\ quits immediately, without saving)" if number == signal.SIGINT else ""
    # Write directly to file descriptor 2: Python's streams may be in the middle of a write, or have lost their reader.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{what}: {'' if first else 'still '}finishing this step, then saving{hint}\n".encode())


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Catch requests to stop inside the block; do nothing outside the main thread."""
    global _requested
    _requested = None
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    missed = None
    try:
        with handle_signals(_handle), handle_lost_readers(_request):
            try:
                yield
            except Interrupted:
                decide()
                raise
            missed = requested_stop()  # arrived after the loop's last check
    finally:
        _requested = None
    if missed is not None:
        signal.raise_signal(signal.Signals[missed])
