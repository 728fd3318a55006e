"""External events that end a command: signals, a closed output pipe, and the end of the parent process.

The same rule holds for all of them. While a model is training, the current step is finished and saved, and the command
exits with 75 (``lmtransfer.training.signals``). Otherwise ``Stopped`` is raised, so that incomplete files are removed,
and the command exits with 128 plus the signal number, as in a shell. Further signals in the meantime have no effect.
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

#: Ctrl-C, the request to terminate, a closed terminal, and the warning that a Slurm job nears its time limit.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

#: Environment variable with a file descriptor that closes when the process to follow has ended.
FOLLOW = "LMTRANSFER_FOLLOW"

_PATIENCE = 3.0  # seconds during which further signals do not disturb the cleanup
_READER_LEFT = signal.Signals.SIGPIPE if hasattr(signal, "SIGPIPE") else signal.Signals.SIGTERM


class Stopped(KeyboardInterrupt):
    """Raised when a signal arrives while no training step has to be finished."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Ending:
    stopped_at = -_PATIENCE
    stopped_by: int | None = None
    decided = False


#: Called when the reader of standard output or error closes it during training.
_on_lost_reader: list[Callable[[signal.Signals], None]] = []


def begin() -> None:
    """Prepare this process for a command: its signals, its standard streams, and the process to follow."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup
            signal.signal(number, _stop)
    _occupy()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, _resilient_stream(getattr(sys, name), descriptor))
    followed = os.environ.pop(FOLLOW, "")
    if followed.isdigit():
        os.set_inheritable(int(followed), False)
        if hasattr(signal, "SIGUSR2"):  # Slurm sends it to all processes of a job; submitit handles it
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        threading.Thread(target=_follow, args=(int(followed),), daemon=True).start()


def end() -> None:
    """Flush all output and ignore signals from now on, until the process exits."""
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
    """Ignore signals from now on, because the command is already ending."""
    _Ending.decided = True


def stopped_by() -> int | None:
    """Return the number of the signal that stopped this command; None if there was none.

    ``Stopped`` can surface as a different error. During an import, it can become an ``ImportError``. While a file is
    read, it can become an error that says that the file is bad.
    """
    return _Ending.stopped_by


def silence(stream: TextIO) -> None:
    """Discard further output to ``stream``, whose reader has closed it; otherwise Python complains when flushing."""
    with contextlib.suppress(OSError, ValueError):
        _to_nowhere(stream.fileno())


@contextmanager
def handle_lost_readers(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """If an output is closed inside the block, call ``handle`` and discard further output instead of failing."""
    _on_lost_reader.append(handle)
    try:
        yield
    finally:
        _on_lost_reader.remove(handle)


@contextmanager
def handle_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals inside the block, except those that ``nohup`` ignores."""
    before = {
        number: signal.signal(number, handle)
        for number in SIGNALS
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect the signals that arrive during the block in a list; afterwards further signals have no effect."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    with handle_signals(note):
        try:
            yield received
        finally:
            if received:
                decide()


@contextmanager
def hold_back_signals() -> Iterator[None]:
    """Delay signals until the end of the block; processes started inside it never get Ctrl-C or SIGHUP."""
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
    """End this process when the process at the other end of a pipe ends."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _occupy() -> None:
    """Open closed standard descriptors on the null device; otherwise the next opened file would get their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # open returns the lowest free number


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _Output(io.FileIO):
    """A standard stream that remains usable during training after its reader has closed it."""

    def write(self, data: object, /) -> int:
        """Write the data; after the reader has closed the stream, discard it."""
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


def _resilient_stream(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return ``stream`` on top of an ``_Output``; if it was closed before the command began, output is discarded."""
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
