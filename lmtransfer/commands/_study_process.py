"""Running one command of a study in a process of its own, so that no run leaves anything behind for the next one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from lmtransfer.errors import Interrupted

_LOOK_EVERY_SECONDS = 0.5


def run_apart(words: Sequence[str], log: Path, console: Console, *, heading: str) -> int:
    """Run ``lmtransfer <words>``, its output in a file, whose last line is shown meanwhile.

    On Ctrl-C or SIGTERM the run is asked to save and to end.

    Args:
        words: the command and its words.
        log: where the output goes.
        console: where to show how it goes.
        heading: what to call it.

    Returns:
        Its exit code; that of an interruption where there was one.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output, console.status(escape(heading)) as status, _sigterm_as_ctrl_c():
        # A session of its own: Ctrl-C on the terminal reaches this process only, which passes it on once.
        process = subprocess.Popen(
            [sys.executable, "-m", "lmtransfer", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    return process.wait(timeout=_LOOK_EVERY_SECONDS)
                except subprocess.TimeoutExpired:
                    status.update(escape(f"{heading}: {_lines(log)[-1]}"))
        except KeyboardInterrupt:
            status.update(escape(f"{heading}: saving"))
            process.terminate()
            process.wait()
            return Interrupted.exit_code
        finally:
            if process.poll() is None:
                process.kill()


def last_words(log: Path) -> str:
    """Why a run failed: its error message, or else the last line of its log."""
    lines = _lines(log)
    errors = [place for place, line in enumerate(lines) if line.startswith("lmtransfer: ")]
    said = lines[errors[-1] :] if errors else lines[-1:]
    return " ".join(line.strip() for line in said).removeprefix("lmtransfer: ")


def _lines(log: Path) -> list[str]:
    """The last lines of a log, at least one."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        return file.read().decode("utf-8", errors="replace").strip().splitlines() or [""]


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
