"""A signal while a model is trained asks for a stop, which comes at a step's boundary, with everything saved.

So do SIGTERM, SIGHUP (the terminal was closed), Ctrl-C, however often, and a reader of standard output or error that
has left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lmtransfer.errors import Interrupted
from lmtransfer.system.interrupts import SIGNALS, decide, lost_readers
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


def _request(number: signal.Signals) -> None:
    global _requested
    _requested = _requested or number


def _handle(number: int, frame: FrameType | None) -> None:
    first = _requested is None
    _request(signal.Signals(number))
    what = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    again = " (Ctrl-\\ quits at once, without saving)" if number == signal.SIGINT else ""
    # Past Python's streams, which may be at a write of their own, and whose reader may have left.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{what}: {'' if first else 'still '}finishing this step, then saving{again}\n".encode())


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Catch what asks for a stop while the block lasts; elsewhere than in the main thread, do nothing."""
    global _requested
    _requested = None
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, _handle)
        for number in SIGNALS
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN  # nohup
    }
    missed = None
    try:
        with lost_readers(_request):
            yield
        missed = stop_requested()  # it came after the last step, when nobody asked any more
    except Interrupted:
        decide()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _requested = None
    if missed is not None:
        signal.raise_signal(signal.Signals[missed])
