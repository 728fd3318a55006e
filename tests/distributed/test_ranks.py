"""Two ranks (gloo, on the CPU) train like one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import PYTHONPATH, ranks
from support.start_ranks import start_ranks

TIMING = {"seconds", "tokens_per_second"}


def _run(case: str, folder: Path, world_size: int) -> list[dict[str, Any]]:
    """Run a case on this many ranks; return the results by rank."""
    start_ranks(ranks.run, case, ranks=world_size, folder=folder)
    return [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(world_size)]


def _records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


def _assert_close(left: Any, right: Any) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    _run("train", folder, 1)
    return folder


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(alone: Path, tmp_path: Path) -> None:
    first, second = _run("train", tmp_path / "two", 2)
    for kept in ("weights", "average"):
        assert first[kept] == second[kept], "the ranks agree to the last bit"
    assert first["average"] != list(first["weights"].values())
    _assert_close(_records(tmp_path / "two"), _records(alone))
    assert len(_records(alone)) == 12
    assert any("loss/large" in line for line in _records(alone))  # its count is computed in the passes
    assert any("validation/large" in line for line in _records(alone))
    # Steps 2 to 4 neither evaluate nor save: counts before the passes, whether all is finite after them, time and
    # stops; and the losses, which a CPU reads at once. DistributedDataParallel communicates by itself.
    for rank in (first, second):
        assert rank["collectives"][:3] == [{"all_gather": 3, "all_reduce": 1}] * 3


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_run_goes_on_with_another_world_size(alone: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start_time = time.monotonic()
    done = subprocess.run(
        [*launcher, "-m", "support.ranks", "killed"], cwd=tmp_path, env=environment, capture_output=True, timeout=200
    )
    assert done.returncode
    assert time.monotonic() - start_time < 60
    assert re.search(rb"rank *: *1\b.*SIGKILL", done.stderr, re.DOTALL)
    pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(2)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    _run("resume", tmp_path, 3)
    _assert_close(_records(tmp_path), _records(alone))


@pytest.mark.slow
def test_more_ranks_than_micro_batches_learn_the_same(alone: Path, tmp_path: Path) -> None:
    _run("train", tmp_path / "four", 4)
    _assert_close(_records(tmp_path / "four"), _records(alone))


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on_with_another_world_size(
    alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    results = _run("signal", folder, 2)
    assert [result["interrupted"] for result in results] == [True, True]
    assert [result["step"] for result in results] == [2, 2]
    (resumed,) = _run("resume", folder, 1)
    assert any(re.search(r"\b2 processes\b.*\b1\b", note) for note in resumed["notes"])
    _assert_close(_records(folder), _records(alone))


@pytest.mark.slow
def test_a_rank_that_is_left_alone_says_so(tmp_path: Path) -> None:
    start_ranks(ranks.run, "left", ranks=2, folder=tmp_path)
    message = json.loads((tmp_path / "left-0.json").read_text())["message"]
    assert all(name in message for name in ("rank 0", "torchrun", "resume=true")), message


@pytest.mark.slow
def test_every_rank_refuses_an_existing_run(tmp_path: Path) -> None:
    for result in _run("refused", tmp_path / "refused", 2):
        assert all(name in result["message"] for name in ("name=", "resume=true")), result


def test_gradients_are_those_of_one_rank(tmp_path: Path) -> None:
    (alone,) = _run("gradients", tmp_path / "one", 1)
    several = _run("gradients", tmp_path / "several", 2)
    used = [gradients["large"] is not None for gradients in alone["steps"]]
    assert len(set(used)) == 2, "steps with and without a gradient of some batches only"
    assert [gradients["norm.weight"] is None for gradients in alone["steps"]] == [False, False, True, True, True]
    for of_rank in several:
        assert of_rank == several[0], "the ranks agree to the last bit"
        for gradients, expected in zip(of_rank["steps"], alone["steps"], strict=True):
            for name, gradient in expected.items():
                assert (gradients[name] is None) == (gradient is None), name
                if gradient is not None:
                    assert np.array(gradients[name]) == pytest.approx(np.array(gradient), rel=1e-9, abs=1e-12), name


@pytest.mark.slow
def test_a_rank_without_memory_says_what_helps_and_ends_all(tmp_path: Path) -> None:
    first, second = _run("no_memory", tmp_path, 2)
    (advice,), (left,) = second["messages"], first["messages"]
    assert all(part in advice for part in ("TrainingError", "step 2", "train.micro_batch_tokens", "resume=true"))
    assert all(part in left for part in ("MachineError", "rank 0", "resume=true"))
