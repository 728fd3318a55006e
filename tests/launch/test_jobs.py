"""Jobs: each runs in its own process once the jobs that it needs have finished; signals, failures and logs."""

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

from lmtransfer.errors import Interrupted, RunDirectoryError
from lmtransfer.launch import jobs as jobs_module
from lmtransfer.launch.jobs import Job, Place, Record, last_lines, last_message, run_jobs
from lmtransfer.system.console import Console

PYTHON = sys.executable


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


def test_a_linked_log_is_neither_read_nor_overwritten(world: Path) -> None:
    """A study that came by mail can have links in its folder of logs."""
    Path("mine").write_text("lmtransfer: a secret\n")
    Path("logs").mkdir()
    Path("logs/a.log").symlink_to(world / "mine")
    Path("elsewhere").mkdir()
    Path("elsewhere/b.log").write_text("lmtransfer: a secret\n")
    Path("b").mkdir()
    Path("b/logs").symlink_to(world / "elsewhere")
    for log in (Path("logs/a.log"), Path("b/logs/b.log")):
        assert last_lines(log) == [""]
        link = log if log.is_symlink() else log.parent
        with refuses(RunDirectoryError, str(link), "link"):
            run([Job("x", "--version", (), Path("x/result"), log)])
    assert Path("mine").read_text() == Path("elsewhere/b.log").read_text() == "lmtransfer: a secret\n"
    os.mkfifo("logs/c.log")
    assert last_lines(Path("logs/c.log")) == [""]


@pytest.mark.parametrize("threads", [None, 1])
def test_jobs_share_the_cores_unless_the_command_says_how_many_threads(
    threads: int | None, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(python, 'mkdir -p $4; echo "$@" > $4/result')
    monkeypatch.setattr(jobs_module, "usable_cores", lambda: 8)
    place = Place.of(2, None, options=(), cache_dir=None, threads=threads)
    without = Place.of(2, None, options=(), cache_dir=None, threads=1)  # a sweep's number for such a command
    run_jobs([job("a")], place, Console(quiet=True))
    run_jobs([job("b")], without, Console(quiet=True))
    assert ("hardware.threads=4" in Path("a/result").read_text()) == (threads is None)
    assert "hardware" not in Path("b/result").read_text()
