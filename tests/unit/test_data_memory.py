from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="measuring memory needs psutil")
SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_prepare_memory.py"


@pytest.mark.slow
def test_ten_times_the_corpus_needs_no_more_memory() -> None:
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), "--megabytes", "6"], capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
