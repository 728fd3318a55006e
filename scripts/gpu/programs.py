"""Runs programs in separate processes, for the measurements."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..bench.machine import environment

ROOT = Path(__file__).resolve().parents[2]


def python(words: Sequence[str], *, seconds: float, allowed: Sequence[int] = (0,), **variables: str) -> str:
    """Run Python with these words in the repository's root, and return its output.

    Raises:
        RuntimeError: the exit status is not ``allowed``; the message has the last lines of the output.
        subprocess.TimeoutExpired: the program took longer than ``seconds``.
    """
    process = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment(ours=True, **variables),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if process.returncode not in allowed:
        lines = (process.stderr.strip() or process.stdout.strip()).splitlines()
        raise RuntimeError(" | ".join(lines[-3:]) or f"exit status {process.returncode}")
    return process.stdout
