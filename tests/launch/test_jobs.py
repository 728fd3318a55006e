"""Jobs: each runs in its own process once the jobs that it needs have finished; signals, failures and cluster jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.errors import Interrupted
from lmtransfer.launch.jobs import Job, Place, Record, last_message, run_jobs
from lmtransfer.system.console import Console

PYTHON = sys.executable
LOCAL_CLUSTER = {"executor": "local", "timeout_min": 5}


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def python(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Python: its fourth argument is the command, for which it writes a result by default."""
    path = world / "python"
    monkeypatch.setattr(sys, "executable", str(path))
    _script(path, "mkdir -p $4; touch $4/result")
    return path


def _script(python: Path, script: str) -> None:
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def job(name: str, *overrides: str, needs: tuple[str, ...] = (), alone: bool = False) -> Job:
    return Job(name, name, overrides, Path(name) / "result", Path("logs") / f"{name}.log", needs=needs, alone=alone)


def run(jobs: list[Job], at_once: int = 1, record: Record = lambda job, seconds, resumed: seconds) -> dict[str, str]:
    return run_jobs(jobs, Place(at_once), Console(quiet=True), record=record)


def order(jobs: list[Job], at_once: int) -> list[str]:
    """Return the names of the jobs in the order in which they ended."""
    ended: list[str] = []
    run(jobs, at_once, lambda job, seconds, resumed: ended.append(job.key) or seconds)  # type: ignore[func-returns-value]
    return ended


def test_a_job_has_a_process_of_its_own_and_a_log() -> None:
    failed = run([job("--version"), job("pretran")])
    assert Path("logs/--version.log").read_text().startswith("lmtransfer ")
    assert list(failed) == ["--version", "pretran"]  # exit code 0, but no result
    assert failed["pretran"].startswith("there is no command 'pretran'")
    assert last_message(Path("logs/pretran.log")) in failed["pretran"]


def test_a_finished_job_is_skipped_and_a_failed_one_stops_those_that_need_it(python: Path) -> None:
    _script(python, "[ $4 = b ] && exit 1\nmkdir -p $4; touch $4/result")
    jobs = [job("a"), job("b"), job("c", needs=("b",)), job("d", needs=("c",)), job("e", needs=("a",))]
    Path("a").mkdir()
    Path("a/result").touch()
    failed = run(jobs, 2)
    assert set(failed) == {"b", "c", "d"}
    assert (failed["c"], failed["d"]) == ("b failed", "c failed")
    assert Path("e/result").exists()
    assert not Path("logs/a.log").exists()


def test_settings_of_a_job_come_before_those_that_change_no_result() -> None:
    assert job("a", "x=1").words("x=2", "y=3") == ("a", "x=1", "y=3")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_signal_is_passed_on_and_the_jobs_may_save(at_once: int, python: Path) -> None:
    _script(python, "trap 'echo saved; exit 75' TERM\necho ready\nwhile :; do sleep 0.05; done")
    jobs = [job(str(number)) for number in range(3)]

    def interrupt() -> None:
        while sum(one.log.is_file() and "ready" in one.log.read_text() for one in jobs) < at_once:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with refuses(Interrupted, "interrupted"):
        run(jobs, at_once)
    assert all(one.log.read_text().split() == ["ready", "saved"] for one in jobs[:at_once])
    assert not any(one.log.exists() for one in jobs[at_once:])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupted_job_ends_the_others(python: Path) -> None:
    _script(python, "[ $4 = 0 ] && exit 75\ntrap 'exit 75' TERM\nwhile :; do sleep 0.05; done")
    with refuses(Interrupted):
        run([job(str(number)) for number in range(3)], 2)
    assert not Path("logs/2.log").exists()


def test_as_many_jobs_as_asked_run_at_the_same_time(python: Path) -> None:
    # Each job waits until another has started, so none would end alone.
    begun = "mkdir -p $4; touch begun-$4; until [ $(ls begun-* | wc -l) -ge 2 ]; do sleep 0.05; done"
    _script(python, f"{begun}; touch $4/result")
    assert run([job(str(number)) for number in range(4)], 2) == {}


def test_a_job_runs_when_its_needs_have_finished_and_alone_if_its_budget_is_a_time(python: Path) -> None:
    busy = "ls busy-* >$4-beside 2>/dev/null; touch busy-$4; sleep 0.3; rm busy-$4"
    _script(python, f"{busy}; mkdir -p $4; touch $4/result")
    jobs = [job("a", alone=True), job("b", alone=True), job("c", needs=("a",)), job("d", needs=("b",))]
    ended = order(jobs, 2)
    assert ended[:2] == ["a", "b"]
    assert Path("a-beside").read_text() == Path("b-beside").read_text() == ""


@pytest.mark.slow
def test_a_job_that_a_killed_runner_left_is_waited_for(python: Path) -> None:
    """The process of the job is still saving and holds the lock of the run."""
    Path("a").mkdir()
    imports = "import pathlib, time; from lmtransfer.runs.create_or_resume import hold"
    hold = f"{imports}; hold(pathlib.Path('a').absolute()); print(1)"
    with subprocess.Popen([PYTHON, "-u", "-c", f"{hold}; time.sleep(2)"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        assert other.poll() is None
        assert run([job("a")]) == {}
        assert other.poll() is not None
    assert Path("a/result").exists()


@pytest.mark.slow
def test_jobs_of_a_cluster_run_at_once_and_make_the_same_results(world: Path) -> None:
    pytest.importorskip("submitit")
    jobs = [job("--version"), job("pretran")]
    failed = run_jobs(jobs, Place(2, LOCAL_CLUSTER), Console(quiet=True))
    assert Path("logs/--version.log").read_text().startswith("lmtransfer ")
    assert failed["pretran"].startswith("there is no command 'pretran'")


@pytest.fixture
def slurm(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands for one machine: a submitted script starts at once, and its job id is its process id."""
    pytest.importorskip("submitit")
    folder = world / "slurm"
    folder.mkdir()
    alive = 'if kill -0 "$number" 2>/dev/null; then echo "$number|RUNNING|a"; else echo "$number|COMPLETED|a"; fi'
    scripts = {
        # Like Slurm, keep a copy of the script: submitit renames the file as soon as sbatch has returned.
        "sbatch": 'cp "$1" "$1.kept"\n'
        "export SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1\n"
        '(export SLURM_JOB_ID=$BASHPID; exec bash "$1.kept") >/dev/null 2>&1 &\n'
        'echo "$!" >> "$(dirname "$0")/numbers"; echo "Submitted batch job $!"',
        "srun": 'while [ "${1#--}" != "$1" ]; do [ "$1" = --unbuffered ] || shift; shift; done; exec "$@"',
        "sacct": f'echo "JobID|State|NodeList"; for number in $(cat "$(dirname "$0")/numbers"); do {alive}; done',
        "scancel": 'kill -TERM "$1"',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    slurm_job = pytest.importorskip("submitit.slurm.slurm").SlurmJob
    monkeypatch.setattr(slurm_job.watcher, "_delay_s", 0.2)
    monkeypatch.setattr(slurm_job, "_results_timeout_s", 1)  # for the result of a job that has none
    return folder


@pytest.mark.slow
def test_jobs_of_slurm_are_submitted_and_those_of_an_earlier_runner_are_waited_for(slurm: Path) -> None:
    settings = {"executor": "slurm", "timeout_min": 5, "slurm_partition": None}
    place, quiet = Place(1, settings), Console(quiet=True)
    assert list(run_jobs([job("--version")], place, quiet)) == ["--version"]  # no result
    assert Path("logs/--version.log").read_text().startswith("lmtransfer ")
    waiting = subprocess.Popen(["sleep", "2"])  # a job that an earlier runner submitted
    (slurm / "numbers").write_text(f"{waiting.pid}\n")
    Path("logs/early.job").write_text(str(waiting.pid))
    threading.Thread(target=waiting.wait).start()
    failed = run_jobs([job("early")], place, quiet)
    assert waiting.poll() == 0
    assert list(failed) == ["early"]  # no result, and nothing else was submitted
    assert (slurm / "numbers").read_text() == f"{waiting.pid}\n"
