"""Commands as processes: starting, watching, waiting for them, and killing them with all their descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import PYTHONPATH

#: Longest time of a command here, in seconds.
LIMIT = 600.0


def environment(*, cache: Path, temporary: Path | None = None) -> dict[str, str]:
    """The environment of a command: one thread, no network, this package, and the model beside this file."""
    paths = [PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **{name: value for name, value in os.environ.items() if name not in ("LMTRANSFER_DATA", "WORLD_SIZE")},
        **{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"},
        **{"PYTHONPATH": os.pathsep.join(paths), "LMTRANSFER_ALLOW": "kills", "LMTRANSFER_CACHE": str(cache)},
        **({} if temporary is None else {"TMPDIR": str(temporary)}),
    }


@dataclass(slots=True)
class Command:
    """A started command."""

    process: subprocess.Popen[Any]
    said: Path
    start_time: float

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start_time

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.process.poll() is not None

    def wait(self) -> int:
        """The exit status after the command has ended; minus the signal's number if a signal ended it.

        Raises:
            TimeoutError: it did not end in time, and was killed.
        """
        try:
            return self.process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.kill(everybody=True)
            raise TimeoutError(f"no end after {LIMIT:.0f} s") from None

    def kill(self, *, everybody: bool) -> None:
        """Kill the command alone, or together with all its descendants, as in a crash."""
        others = descendants(self.process.pid) if everybody else []
        self.process.kill()
        for pid in others:
            _signal(pid, signal.SIGKILL)
        self.process.wait()

    def output(self) -> str:
        """The whole output of the command."""
        return self.said.read_text(encoding="utf-8", errors="replace")


def start(words: Sequence[str], folder: Path, *, variables: dict[str, str], said: Path) -> Command:
    """Start ``lmtransfer <words>`` in a folder."""
    with said.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lmtransfer", *words],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed,
        )
    return Command(process, said, time.monotonic())


def finished(words: Sequence[str], folder: Path, *, cache: Path) -> str:
    """Run a command to its end and return its output.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lmtransfer", *words],
        cwd=folder,
        env=environment(cache=cache),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    if done.returncode:
        raise RuntimeError(f"lmtransfer {' '.join(words)} failed: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def descendants(pid: int) -> list[int]:
    """All direct and indirect child processes of a process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (parent := _parent(path)) is not None:
            children.setdefault(parent, []).append(int(path.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def still_there(pids: Sequence[int], *, seconds: float) -> list[int]:
    """The processes that have not ended after this many seconds."""
    until = time.monotonic() + seconds
    left = [pid for pid in pids if _parent(Path("/proc") / str(pid)) is not None]
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = [pid for pid in left if _parent(Path("/proc") / str(pid)) is not None]
    return left


def _parent(process: Path) -> int | None:
    """The parent of an entry of /proc; None if the process has ended."""
    try:
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(parent)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _heed() -> None:
    """Reset the signal handling to that of a terminal, since this process may run under nohup or in the background."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
