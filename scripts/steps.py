"""Running commands one after the other, as a user would type them, with results in a new folder."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def run_steps(steps: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Print each title and command, and run the command; if one fails, exit with its exit status.

    Args:
        steps: title, and the words after ``lmtransfer``.
    """
    for title, words in steps:
        print(f"\n\033[1m{title}\033[0m\n$ lmtransfer {shlex.join(words)}", flush=True)
        ended = subprocess.run([sys.executable, "-P", "-m", "lmtransfer", *words], check=False)
        if ended.returncode:
            sys.exit(ended.returncode)


def new_folder(parent: Path, name: str) -> Path:
    """``<parent>/<name>``, or ``<name>-2`` and so on if it exists already."""
    number, folder = 1, parent / name
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder
