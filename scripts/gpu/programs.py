"""Programs that a measurement runs in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..bench.machine import environment

ROOT = Path(__file__).resolve().parents[2]


def python(words: Sequence[str], *, seconds: float, allowed: Sequence[int] = (0,), **variables: str) -> str:
    """Run Python with these words in the root of the repository; returns what it prints.

    Raises:
        RuntimeError: its exit status is not among the ``allowed``; with its last lines.
        subprocess.TimeoutExpired: it took longer than ``seconds``.
    """
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment(ours=True, **variables),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode not in allowed:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(" | ".join(lines[-3:]) or f"exit status {done.returncode}")
    return done.stdout
