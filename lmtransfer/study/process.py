"""Running one command of a study in its own process, so that runs cannot affect each other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.text import Text

from lmtransfer.errors import Interrupted
from lmtransfer.system.console import Console
from lmtransfer.system.interrupts import FOLLOW, SIGNALS, decide

_LOOK_EVERY_SECONDS = 0.5


def run_apart(overrides: Sequence[str], log: Path, console: Console, *, heading: str) -> int:
    """Run ``lmtransfer <overrides>`` with its output in a file; the last line of the file is shown meanwhile.

    On Ctrl-C (also repeated), SIGTERM or SIGHUP, and if this process dies, the run gets a signal to save and to end.

    Args:
        overrides: the command and its overrides.
        log: file for the output.
        console: where to show the progress.
        heading: name of the run on the console.

    Returns:
        The exit code of the command, or of the interruption if there was one.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    followed, held = os.pipe()  # this process holds one end; the run ends when that end closes
    try:
        with (
            log.open("w", encoding="utf-8") as output,
            console.status(heading) as status,
            _received_signals() as received,
        ):
            # In its own session: Ctrl-C on the terminal reaches only this process, which passes it on once.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lmtransfer", *overrides],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(followed,),
                env={**os.environ, **_importable(), FOLLOW: str(followed)},
            )
            announced = False
            while True:
                try:
                    code = process.wait(timeout=_LOOK_EVERY_SECONDS)
                    return Interrupted.exit_code if received else code
                except subprocess.TimeoutExpired:
                    if received and not announced:
                        process.terminate()
                        announced = True
                    status.update(Text(f"{heading}: {'saving' if received else _lines(log)[-1]}"))
    finally:
        os.close(followed)
        os.close(held)


def _importable() -> dict[str, str]:
    """The environment in which a child process finds this lmtransfer, if it lies next to the user's files."""
    package_root = str(Path(__file__).absolute().parents[2])
    if package_root in sys.path:
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([package_root, *([before] if before else [])])}


def last_words(log: Path) -> str:
    """Why a run failed: its error message, or the last line of its log if there is none."""
    lines = _lines(log)
    errors = [place for place, line in enumerate(lines) if line.startswith("lmtransfer: ")]
    last_lines = lines[errors[-1] :] if errors else lines[-1:]
    return " ".join(line.strip() for line in last_lines).removeprefix("lmtransfer: ")


def was_interrupted(log: Path) -> bool:
    """Whether the error message of a run is that of an interruption: the study continues it."""
    return bool(re.match(r"interrupted$|[^:]*: stopped after step ", last_words(log)))


def _lines(log: Path) -> list[str]:
    """The last lines of a log, at least one."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        return file.read().decode("utf-8", errors="replace").strip().splitlines() or [""]


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
