"""One command of a study in its own process, so that runs cannot affect each other."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.system.interrupts import FOLLOW


@dataclass(frozen=True, slots=True)
class Command:
    """A command that runs in its own process.

    Attributes:
        words: the command and its overrides.
        log: file for the output.
        heading: its name on the console.
    """

    words: tuple[str, ...]
    log: Path
    heading: str


class Apart:
    """The process of a command. It gets a signal to save and to end if this process dies.

    Args:
        command: the command; it starts at once.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self._terminated = False
        command.log.parent.mkdir(parents=True, exist_ok=True)
        followed, self._held = os.pipe()  # this process holds one end; the command ends when that end closes
        try:
            with command.log.open("w", encoding="utf-8") as output:
                # In its own session: Ctrl-C on the terminal reaches only this process, which passes it on once.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "lmtransfer", *command.words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(followed,),
                    env={**os.environ, **_importable(), FOLLOW: str(followed)},
                )
        except BaseException:
            os.close(self._held)
            raise
        finally:
            os.close(followed)

    def exit_code(self, *, within: float) -> int | None:
        """The exit code, if the command ends within these seconds; None if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=within)
        return None

    def terminate(self) -> None:
        """Send the signal to save and to end, once."""
        if not self._terminated:
            self._process.terminate()
            self._terminated = True

    def release(self) -> None:
        """Let go of the process; if it still runs, it gets the signal to save and to end."""
        os.close(self._held)

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        return "saving" if self._terminated else _lines(self.command.log)[-1]


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
