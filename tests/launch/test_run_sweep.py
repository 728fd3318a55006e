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

from lmtransfer.cli import main
from lmtransfer.launch import run_sweep
from lmtransfer.launch.sweep_points import SweepPlan

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


def test_points_beside_each_other_share_the_preparation_and_give_the_same_numbers(
    start: Start, text_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = [*PRETRAIN, "corpus._target_=counting.CountedCorpus", "train.steps=3", "seed=1,2,3"]
    for launcher in (JOBLIB, SUBMITIT):
        name = launcher[0].partition("=")[2]
        status, out, err = finished(start(*words, f"name={name}", f"cache_dir={name}", *launcher))
        assert status == 0, err
        assert "sweep: 3 of 3 finished" in out
        for kind in ("tokenizers", "corpora"):
            assert len([path for path in Path(name, kind).iterdir() if path.is_dir()]) == 1
        assert len(passes()) == 2, "one pass for the tokenizer and one for the tokens"
        Path("passes").unlink()
    monkeypatch.syspath_prepend(text_world)
    monkeypatch.setenv("LMTRANSFER_ALLOW", "counting")
    monkeypatch.setenv("PASSES", str(text_world / "passes"))
    assert main([*words, "name=after", "cache_dir=joblib"]) == 0
    assert not passes(), "the tokenizer and the tokens come from the cache"
    assert len(all_numbers("after")) == 3
    assert all_numbers("joblib") == all_numbers("submitit_local") == all_numbers("after")


def passes() -> list[str]:
    """The processes that have read the text."""
    return Path("passes").read_text().split() if Path("passes").is_file() else []


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


@pytest.mark.parametrize("numbers", [[signal.SIGTERM] * 3, [signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP]], ids=str)
def test_only_a_second_ctrl_c_ends_the_points_that_are_saving(
    numbers: list[signal.Signals], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_sweep, "_PATIENCE", 0.0)
    monkeypatch.setattr(run_sweep.signal, "getsignal", lambda number: signal.default_int_handler)
    with run_sweep.forward_signals(SweepPlan(launcher="joblib", workers=2), tmp_path):
        assert not run_sweep.is_stopping(tmp_path)
        for number in numbers:
            signal.raise_signal(number)
            assert run_sweep.is_stopping(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


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
    words = ["train.steps=150", "train.save_every=20", "seed=1,2", "name=x", *JOBLIB]
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
    assert {path: one["steps"] for path, one in all_numbers("x").items()} == {"seed=1": 150, "seed=2": 150}


def test_a_sweep_that_was_killed_goes_on_and_gives_the_same_numbers(
    start: Start, text_world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*PRETRAIN, "train.steps=100", "train.save_every=20", "train.eval_every=50", "seed=1,2"]
    process = start(*words, "name=killed")
    begun = [Path(f"runs/pretrain/killed/seed={seed}") for seed in (1, 2)]
    wait_until(lambda: any((run / "result.json").is_file() for run in begun), process)
    unfinished = [run for run in begun if not (run / "result.json").is_file()]
    wait_until(lambda: any((run / "checkpoints/last/state.json").is_file() for run in unfinished), process)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert [(run / "result.json").is_file() for run in begun] == [True, False]
    before = written("killed/seed=1")
    assert main([*words, "name=killed"]) == 0
    assert "sweep: 2 of 2 finished" in capsys.readouterr().out
    assert written("killed/seed=1") == before, "finished points are not run again"
    assert main([*words, "name=alone"]) == 0
    assert all_numbers("killed") == all_numbers("alone")
