"""Runs commands one after the other, as a user would type them, with results in a new folder."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def run_steps(steps: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print each title and command, and run the command; if one fails, exit with its exit status.

    Args:
        steps: the title of each step, and the words after ``lmtransfer``.
    """
    for title, words in steps:
        print(f"\n\033[1m{title}\033[0m\n$ lmtransfer {shlex.join(words)}", flush=True)
        if code := run_command(words):
            sys.exit(code)


def run_command(words: Sequence[str]) -> int:
    """Run ``lmtransfer`` with these words and return its exit status.

    Ctrl-C reaches the command, which saves its state and ends by itself; this process only waits for the command.
    """
    handler = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the command would inherit
    try:
        return subprocess.Popen([sys.executable, "-P", "-m", "lmtransfer", *words]).wait()
    finally:
        signal.signal(signal.SIGINT, handler)


def run_script(main: Callable[[], int | None]) -> None:
    """Run the main function of a script and exit with its status; Ctrl-C ends it without a traceback."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def new_folder(parent: Path, name: str) -> Path:
    """Return ``<parent>/<name>``, or ``<name>-2`` and so on if the folder already exists."""
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder
