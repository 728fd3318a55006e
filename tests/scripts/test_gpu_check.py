"""``scripts/gpu_check.sh`` on a CPU, tiny: the parts pass and write their JSON, and a second call makes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.composed import problems

from scripts.gpu import pretraining
from scripts.gpu.part import Place

ROOT = Path(__file__).parents[2]
PARTS = {"tests", "ceiling", "bert", "trainer", "phases", "families", "finetune", "losses", "batches"}


def _check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {"LMTRANSFER_GPU_CHECK": "cpu", "PYTHON": sys.executable, "TMPDIR": str(folder)}
    return subprocess.run(
        [str(ROOT / "scripts" / "gpu_check.sh"), *words, "--out", str(folder / "out")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_parts_pass_and_are_not_repeated(tmp_path: Path) -> None:
    parts = sorted(PARTS - {"trainer", "phases", "families", "batches"})  # these take long
    done = _check(tmp_path, *parts)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.stem: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert written.keys() == set(parts)
    results = {part: json.loads(text) for part, text in written.items()}
    assert all(result["finished"] for result in results.values())
    assert results["tests"]["measurements"]["gpu"]["passed"] > 0
    assert results["bert"]["measurements"].keys() == {"128 full", "128 ragged", "512 full", "512 ragged"}
    assert all(numbers["tokens_per_second"] > 0 for numbers in results["finetune"]["measurements"].values())
    assert results["finetune"]["measurements"]["pretrain"]["memory"] > 1e7
    assert all(numbers["flops_per_token"] > 0 for numbers in results["finetune"]["measurements"].values())
    assert results["losses"]["measurements"]["fp32"]["deviations"] == {"last_tenth": 0, "largest": 0}
    assert 0 < results["losses"]["measurements"]["bf16"]["deviations"]["largest"] < 0.05
    ragged = results["bert"]["measurements"]["128 ragged"]
    assert ragged["mean_length"] < 127
    assert _check(tmp_path, *parts).returncode == 0
    assert {path.stem: path.read_text() for path in (tmp_path / "out").iterdir()} == written


@pytest.mark.slow
def test_the_words_of_every_family_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part itself pretrains with them."""
    monkeypatch.setenv("LMTRANSFER_BENCH_SYNTHETIC", "20")
    understood = []

    def note(place: Place, command: str, name: str, words: Sequence[str], **_: Any) -> dict[str, Any]:
        assert problems(command, [*words, f"name={name}"]) == []
        understood.append(name)
        return {}

    monkeypatch.setattr(pretraining.command, "run", note)
    place = Place(device="cpu", name="", large=False, work=tmp_path)
    for measure in pretraining.families(place).values():
        measure(60.0)
    assert understood == ["electra_small", "modern_base", "elmo"]


@pytest.mark.slow
def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = _check(tmp_path, "speed")
    assert done.returncode == 2
    assert all(part in done.stderr for part in ("speed", *PARTS))
