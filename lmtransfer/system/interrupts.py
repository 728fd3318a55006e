"""What ends a command from outside: signals, readers of its output that leave, and the process that started it.

One rule holds for all of them. While a model is trained, the step is finished and saved, and the command exits with 75
(``lmtransfer.training.signals``). Otherwise the command ends by ``Stopped``, so that half-made files are cleared away,
and exits with 128 plus the signal's number, as a shell counts. A signal that follows meanwhile changes nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from lmtransfer.system.printable import IN_ASCII

#: Ctrl-C, the request to end, and the terminal that was closed.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP

#: Names, in the environment, the file descriptor that ends with the process to follow.
FOLLOW = "LMTRANSFER_FOLLOW"

_PATIENCE = 3.0  # seconds in which further signals leave the clearing up alone
_READER_LEFT = signal.Signals.SIGPIPE if hasattr(signal, "SIGPIPE") else signal.Signals.SIGTERM


class Stopped(KeyboardInterrupt):
    """A signal came where there is no step to finish.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Ending:
    """Whether this process ends already."""

    stopped_at = -_PATIENCE
    stopped_by: int | None = None
    decided = False


#: Called, while a model is trained, when the reader of standard output or error has left.
_on_lost_reader: list[Callable[[signal.Signals], None]] = []


def begin() -> None:
    """Set up this process for a command: its signals, its standard streams, and whom it follows."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    _occupy()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, _patient(getattr(sys, name), descriptor))
    followed = os.environ.pop(FOLLOW, "")
    if followed.isdigit():
        os.set_inheritable(int(followed), False)
        threading.Thread(target=_follow, args=(int(followed),), daemon=True).start()


def end() -> None:
    """Leave no output unwritten and let nothing disturb the last moments of this process."""
    decide()
    for number in SIGNALS:
        if signal.getsignal(number) is _stop:
            signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            silence(stream)


def decide() -> None:
    """From now on signals change nothing: the command ends already."""
    _Ending.decided = True


def stopped_by() -> int | None:
    """The number of the signal that has stopped this command, if one has.

    An import that ``Stopped`` broke off may come to light as an ``ImportError``, and a file's reader as a bad file.
    """
    return _Ending.stopped_by


def silence(stream: TextIO) -> None:
    """Send what is written to ``stream`` nowhere, since its reader has left; Python would complain when it flushes."""
    with contextlib.suppress(OSError, ValueError):
        _to_nowhere(stream.fileno())


@contextmanager
def lost_readers(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While the block lasts, a reader that has left is no error: ``handle`` is told, and output goes nowhere."""
    _on_lost_reader.append(handle)
    try:
        yield
    finally:
        _on_lost_reader.remove(handle)


@contextmanager
def held_back() -> Iterator[None]:
    """Signals that come while the block lasts wait for its end; processes that it starts never see Ctrl-C or SIGHUP."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number for number in SIGNALS if number != signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(number: int, frame: FrameType | None) -> None:
    if _Ending.decided or time.monotonic() - _Ending.stopped_at < _PATIENCE:
        return
    _Ending.stopped_at = time.monotonic()
    _Ending.stopped_by = number
    raise Stopped(number)


def _follow(descriptor: int) -> None:
    """End with the process that holds the other end of a pipe."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _occupy() -> None:
    """Let standard descriptors that were closed lead nowhere: the next file to be opened would take their places."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest that is free


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _Output(io.FileIO):
    """A standard stream that outlives its reader while a model is trained."""

    def write(self, data: object, /) -> int:
        """Write, or write nowhere from now on."""
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if not _on_lost_reader:
                error.filename = "standard output" if self.fileno() == 1 else "standard error"
                raise
            _to_nowhere(self.fileno())
            for handle in _on_lost_reader:
                handle(_READER_LEFT)
            return memoryview(data).nbytes  # type: ignore[arg-type]


def _patient(stream: TextIO | None, descriptor: int) -> TextIO:
    """``stream`` over an ``_Output``; one that was closed before the command began leads nowhere."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    if not isinstance(stream, io.TextIOWrapper) or stream.fileno() != descriptor:
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, "w", closefd=False)),
        encoding=stream.encoding,
        errors=IN_ASCII,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
