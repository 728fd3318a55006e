"""Takes one measurement in its own process, so that its peak memory is separate."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .machine import environment
from .setting import Flags, Setting

_RESULT_MARK = "measured: "
_OURS = ("ours", "phases", "ceiling")


def measure_side(side: str, setting: Setting, flags: Flags, *, timeout: float | None = None) -> dict[str, Any]:
    """Start a process that measures ``ours``, ``phases``, ``ceiling``, ``trainer`` or ``lean``.

    Raises:
        RuntimeError: the process failed; the message is the last line of its output.
        subprocess.TimeoutExpired: the process took longer than ``timeout`` seconds.
    """
    process = subprocess.run(
        [sys.executable, "-m", "scripts.bench.side", side, setting.to_json(), json.dumps(asdict(flags))],
        cwd=Path(__file__).resolve().parents[2],
        env=environment(ours=side in _OURS or flags.lent),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    results = [line for line in process.stdout.splitlines() if line.startswith(_RESULT_MARK)]
    if process.returncode or not results:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {process.returncode}")
    result: dict[str, Any] = json.loads(results[-1].removeprefix(_RESULT_MARK))
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
    print(_RESULT_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
