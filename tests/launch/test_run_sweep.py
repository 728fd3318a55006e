"""Sweeps of real pretraining runs: in parallel, one after the other, killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.tiny_pretraining import SHORT, TEXT, TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRAINING = ["experiment=null", "train.seconds=null", "optimizer=adamw", "hardware=exact", "hardware.threads=1"]
PRETRAIN = ["pretrain", *TRAINING, *TINY, *TEXT, *SHORT, "train.log_every=1", "-m"]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
SUBMITIT = ["hydra/launcher=submitit_local"]

#: Records each pass over the documents, in any process.
CORPUS = """\
import os
from lmtransfer.data.corpora.corpus import FileCorpus

class CountedCorpus(FileCorpus):
    def documents(self):
        with open(os.environ["PASSES"], "a") as passes:
            print(os.getpid(), file=passes)
        yield from super().documents()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(text_world: Path) -> Start:
    """Start ``lmtransfer <words>`` in a session of its own; a corpus that counts its passes can be used."""
    (text_world / "counting.py").write_text(CORPUS)

    def started(*words: str) -> subprocess.Popen[str]:
        environment = {"PYTHONPATH": str(text_world), "LMTRANSFER_ALLOW": "counting", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "lmtransfer", *words],
            env={**os.environ, **environment, "PASSES": str(text_world / "passes"), "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return started


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit status and the two outputs of a command."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def numbers(run: Path) -> dict[str, Any]:
    """Return the results of training: the result and the loss of each step, without times."""
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: {key: value for key, value in line.items() if "loss" in key} for line in lines}
    assert losses
    return {"metrics": result["metrics"], "steps": result["steps"], "losses": losses}


def all_numbers(name: str) -> dict[str, Any]:
    """Return the results of each point of a sweep."""
    return {path.name: numbers(path) for path in sorted(Path("runs/pretrain", name).iterdir())}


def written(name: str) -> dict[str, int]:
    """Return the modification time of each file in the runs of a sweep."""
    found = Path("runs/pretrain", name).rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file() and path.name != ".lock"}


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the command ended too early"
        assert time.monotonic() < until, "the command took too long"
        time.sleep(0.02)


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT], ids=["joblib", "submitit_local"])
def test_points_beside_each_other_share_the_preparation_and_give_the_same_numbers(
    launcher: list[str], start: Start, text_world: Path
) -> None:
    pytest.importorskip(f"hydra_plugins.hydra_{launcher[0].partition('=')[2].partition('_')[0]}_launcher")
    counted = ["corpus._target_=counting.CountedCorpus", "train.steps=3", "seed=1,2,3"]
    status, out, err = finished(start(*PRETRAIN, *counted, "name=beside", *launcher))
    assert status == 0, err
    assert "sweep: 3 of 3 finished" in out
    passes = Path("passes").read_text().split()
    kinds = [
        [path.name for path in Path("cache", kind).iterdir() if path.is_dir()] for kind in ("tokenizers", "corpora")
    ]
    assert [len(kind) for kind in kinds] == [1, 1]
    status, _, err = finished(start(*PRETRAIN, *counted, "name=after"))
    assert status == 0, err
    assert Path("passes").read_text().split() == passes, "the tokenizer and the tokens come from the cache"
    assert len(passes) == passes_of_one(start, text_world, counted)
    assert all_numbers("beside") == all_numbers("after")
    assert len(all_numbers("after")) == 3
    before = written("beside")
    status, out, err = finished(start(*PRETRAIN, *counted, "name=beside", *launcher))
    assert (status, "sweep: 3 of 3 finished" in out) == (0, True)
    assert written("beside") == before


def passes_of_one(start: Start, world: Path, words: list[str]) -> int:
    """Count how often a single run reads the text, with a separate cache."""
    single = [word for word in PRETRAIN if word != "-m"] + words[:-1]
    (world / "passes").unlink()
    status, _, err = finished(start(*single, "seed=1", "name=one", f"cache_dir={world / 'other'}"))
    assert status == 0, err
    return len((world / "passes").read_text().split())


def test_points_that_fail_beside_others_are_listed_and_tabled(start: Start, text_world: Path) -> None:
    Path("empty.txt").touch()
    shared = [word for word in PRETRAIN if not word.startswith("corpus.path=")]
    words = ["train.steps=2", "seed=1,2", "corpus.path=text.txt,empty.txt", "name=x"]
    status, out, err = finished(start(*shared, *words, *JOBLIB))
    assert status == 1
    assert "sweep: 2 of 4 finished, 2 failed" in out
    heading, *listed = err.splitlines()[-3:]
    assert heading.startswith("lmtransfer: 2 of 4 ")
    failed = [f"corpus.path=empty.txt,seed={seed}" for seed in (1, 2)]
    assert [line.partition(": ")[0].strip() for line in listed] == failed
    assert sorted(path.name for path in Path("runs/pretrain/x").iterdir()) == [
        f"corpus.path=text.txt,seed={seed}" for seed in (1, 2)
    ]
    table = out[out.rindex("sweep: ") :]
    assert table.count("failed") == 3  # one for the command line, one per point
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 75), (signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_what_ends_the_command_costs_points_beside_each_other_no_step(
    number: signal.Signals, status: int, start: Start, text_world: Path
) -> None:
    """Ctrl-C goes to all processes; other signals go to the command. Its points save even if the command is killed."""
    words = ["train.steps=100000", "train.save_every=100000", "seed=1,2,3", "name=x", *JOBLIB]
    process = start(*PRETRAIN, *words)
    runs = [Path(f"runs/pretrain/x/seed={seed}") for seed in (1, 2)]
    wait_until(lambda: all((run / "metrics.jsonl").is_file() for run in runs), process)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    found, _, err = finished(process)  # also waits for the points, which inherit the streams
    assert found == status, err
    assert "Traceback" not in err
    for run in runs:
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        assert json.loads((run / "checkpoints/last/state.json").read_text())["step"] >= last
    assert not Path("runs/pretrain/x/seed=3").exists()


def test_a_killed_point_is_one_message_and_is_taken_up_again(start: Start, text_world: Path) -> None:
    psutil = pytest.importorskip("psutil")
    words = ["train.steps=300", "train.save_every=20", "seed=1,2", "name=x", *JOBLIB]
    process = start(*PRETRAIN, *words)
    wait_until(lambda: len(list(Path("runs/pretrain/x").glob("*/checkpoints/last/state.json"))) == 2, process)
    workers = [one for one in psutil.Process(process.pid).children() if "popen_loky" in " ".join(one.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    status, _, err = finished(process)
    assert status == 2
    message = err.splitlines()[-1]
    assert message.startswith("lmtransfer: hydra/launcher=joblib: ")
    assert "hydra.launcher.n_jobs" in message
    assert "Traceback" not in err
    status, _, err = finished(start(*PRETRAIN, *words))
    assert status == 0, err
    assert {path: one["steps"] for path, one in all_numbers("x").items()} == {"seed=1": 300, "seed=2": 300}


@pytest.mark.parametrize("launcher", [[], JOBLIB], ids=["one after the other", "joblib"])
def test_a_sweep_that_was_killed_goes_on_and_gives_the_same_numbers(
    launcher: list[str], start: Start, text_world: Path
) -> None:
    words = ["train.steps=200", "train.save_every=20", "train.eval_every=50"]
    process = start(*PRETRAIN, *words, "seed=1,2,3", "name=killed", *launcher)
    begun = [Path(f"runs/pretrain/killed/seed={seed}") for seed in (1, 2, 3)]
    wait_until(lambda: any((run / "result.json").is_file() for run in begun), process)
    unfinished = [run for run in begun if not (run / "result.json").is_file()]
    wait_until(lambda: any((run / "checkpoints/last/state.json").is_file() for run in unfinished), process)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished_before = [run for run in begun if (run / "result.json").is_file()]
    assert 1 <= len(finished_before) < 3
    before = {path: when for run in finished_before for path, when in written(f"killed/{run.name}").items()}
    status, out, err = finished(start(*PRETRAIN, *words, "seed=1,2,3", "name=killed", *launcher))
    assert status == 0, err
    assert "sweep: 3 of 3 finished" in out
    after = {path: when for run in finished_before for path, when in written(f"killed/{run.name}").items()}
    assert after == before, "finished points are not run again"
    assert finished(start(*PRETRAIN, *words, "seed=1,2,3", "name=alone"))[0] == 0
    assert all_numbers("killed") == all_numbers("alone")
