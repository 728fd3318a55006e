"""Our side: the same command that a user would type."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .outcome import Outcome


def finetuned(words: Sequence[str], *, root: Path, name: str) -> Outcome:
    """Run ``lmtransfer finetune`` and read the result that it writes below ``root``.

    Raises:
        SystemExit: it failed; with its output.
    """
    whole = ["finetune", *words, f"name={name}", f"output_root={root}"]
    done = subprocess.run(
        [sys.executable, "-m", "lmtransfer", *whole],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"lmtransfer {' '.join(whole)}\n{done.stdout}{done.stderr}")
    result = json.loads((root / "finetune" / name / "result.json").read_text(encoding="utf-8"))
    return Outcome(accuracy=result["metrics"]["accuracy"], tokens=result["tokens"], seconds=result["seconds"])
