from __future__ import annotations

import subprocess
import sys

import pytest
from support import ROOT

pytest.importorskip("psutil", reason="measuring memory needs psutil")


@pytest.mark.slow
def test_ten_times_the_corpus_needs_no_more_memory() -> None:
    command = [sys.executable, "-m", "scripts.bench.prepare_memory", "--megabytes", "6"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
