"""SIGTERM and Ctrl-C ask for a stop, which comes at a step's boundary; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lmtransfer.training import distributed

_requested: signal.Signals | None = None


class StopDuringEvaluation(Exception):
    """A stop was asked for while evaluating: the loop saves, and evaluates again when the run is resumed."""


def stop_requested() -> str | None:
    """The name of the signal that asked this process to stop, or None."""
    return None if _requested is None else _requested.name


def agreed_stop() -> str | None:
    """The name of a signal that asked *any* rank to stop; the same answer on all of them."""
    return next((name for name in distributed.gather(stop_requested()) if name), None)


def _handle(number: int, frame: FrameType | None) -> None:
    global _requested
    if number == signal.SIGINT and _requested is not None:
        raise KeyboardInterrupt
    _requested = signal.Signals(number)
    what = "Ctrl-C" if number == signal.SIGINT else _requested.name
    again = " (Ctrl-C again quits at once, without saving)" if number == signal.SIGINT else ""
    print(f"\n{what}: finishing this step, then saving{again}", file=sys.stderr, flush=True)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Catch SIGTERM and Ctrl-C while the block lasts; elsewhere than in the main thread, do nothing."""
    global _requested
    _requested = None
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _requested = None
