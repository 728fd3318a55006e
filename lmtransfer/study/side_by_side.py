"""Running the commands of a study, each in its own process: one after the other, or several at the same time."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.text import Text

from lmtransfer.errors import Interrupted
from lmtransfer.study.process import Apart, Command
from lmtransfer.system.console import Console
from lmtransfer.system.interrupts import SIGNALS, decide

_LOOK_EVERY_SECONDS = 0.5


def run_commands(commands: Iterable[Command], console: Console, *, at_once: int = 1) -> Iterator[tuple[Command, int]]:
    """Run commands; the last line of the output of each is shown meanwhile.

    On Ctrl-C (also repeated), SIGTERM or SIGHUP, when a command has been interrupted by itself, and if this process
    dies, each running command gets a signal to save and to end, and no other one starts.

    Args:
        commands: the commands; the next one is asked for when it can start.
        console: where to show the progress.
        at_once: how many may run at the same time.

    Yields:
        Each command when it has ended, with its exit code, or with that of an interruption if there was one.
    """
    waiting, running = iter(commands), list[Apart]()
    ending = False
    with _received_signals() as received, console.status("") as status:
        try:
            while True:
                ending = ending or bool(received)
                while len(running) < at_once and not ending and (command := next(waiting, None)):
                    running.append(Apart(command))
                if not running:
                    return
                if ending:
                    for process in running:
                        process.terminate()
                status.update(Text("\n").join(_progress(process, console.width) for process in running))
                for process in list(running):
                    code = process.exit_code(within=_LOOK_EVERY_SECONDS / len(running))
                    if code is not None:
                        running.remove(process)
                        process.release()
                        ending = ending or bool(received) or code == Interrupted.exit_code
                        yield process.command, Interrupted.exit_code if ending else code
        finally:
            for process in running:
                process.release()


def _progress(process: Apart, width: int) -> Text:
    """The last line of a command, cut to the width of the console beside the spinner."""
    line = Text(f"{process.command.heading}: {process.last_line}")
    line.truncate(width - 2, overflow="ellipsis")
    return line


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """A list that collects the signals that arrive during the block."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {
        number: signal.signal(number, note)
        for number in SIGNALS
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN  # nohup
    }
    try:
        yield received
    finally:
        if received:
            decide()
        for number, handler in before.items():
            signal.signal(number, handler)
