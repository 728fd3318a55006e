"""Running one command of a study in a process of its own, so that no run leaves anything behind for the next one."""

from __future__ import annotations

import os
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
    """Run ``lmtransfer <words>``, its output in a file, whose last line is shown meanwhile.

    On Ctrl-C (however often), SIGTERM or SIGHUP the run is asked to save and to end; so it is where this process dies.

    Args:
        overrides: the command and its words.
        log: where the output goes.
        console: where to show how it goes.
        heading: what to call it.

    Returns:
        Its exit code; that of an interruption where there was one.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    followed, held = os.pipe()  # the run ends when this process, which holds one end, is no more
    try:
        with log.open("w", encoding="utf-8") as output, console.status(heading) as status, _asked() as asked:
            # A session of its own: Ctrl-C on the terminal reaches this process only, which passes it on once.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lmtransfer", *overrides],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(followed,),
                env={**os.environ, **_importable(), FOLLOW: str(followed)},
            )
            told = False
            while True:
                try:
                    code = process.wait(timeout=_LOOK_EVERY_SECONDS)
                    return Interrupted.exit_code if asked else code
                except subprocess.TimeoutExpired:
                    if asked and not told:
                        process.terminate()
                        told = True
                    status.update(Text(f"{heading}: {'saving' if asked else _lines(log)[-1]}"))
    finally:
        os.close(followed)
        os.close(held)


def _importable() -> dict[str, str]:
    """The environment in which a process finds this lmtransfer where it was found beside the user's own files."""
    beside = str(Path(__file__).absolute().parents[2])
    if beside in sys.path:
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([beside, *([before] if before else [])])}


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
def _asked() -> Iterator[list[int]]:
    """The signals that asked for an end while the block lasts, in a list that grows."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {
        number: signal.signal(number, note)
        for number in SIGNALS
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) is not signal.SIG_IGN  # nohup
    }
    try:
        yield asked
    finally:
        if asked:
            decide()
        for number, handler in before.items():
            signal.signal(number, handler)
