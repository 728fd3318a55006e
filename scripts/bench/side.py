"""One measurement in its own process, so that its peak memory is separate: ``python -m scripts.bench.side ...``."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .machine import environment
from .setting import Flags, Setting

_MARK = "measured: "
_OURS = ("ours", "phases", "ceiling")


def measured(side: str, setting: Setting, flags: Flags, *, timeout: float | None = None) -> dict[str, Any]:
    """Start a process that measures ``ours``, ``phases``, ``ceiling``, ``trainer`` or ``lean``.

    Raises:
        RuntimeError: it failed; with the last line of its output.
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds.
    """
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench.side", side, setting.to_json(), json.dumps(asdict(flags))],
        cwd=Path(__file__).resolve().parents[2],
        env=environment(ours=side in _OURS or flags.lent),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not found:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    result: dict[str, Any] = json.loads(found[-1].removeprefix(_MARK))
    return result


def main() -> None:
    """Measure and print the result as JSON."""
    side, setting, flags = sys.argv[1], Setting(**json.loads(sys.argv[2])), Flags(**json.loads(sys.argv[3]))
    if side == "ours":
        from . import ours

        result = ours.measure(setting)
    elif side == "phases":
        from . import phases

        result = phases.measure(setting)
    elif side == "ceiling":
        from . import ceiling

        result = ceiling.measure(setting)
    else:
        from . import peer

        result = peer.measure(setting, flags, lean=side == "lean")
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
