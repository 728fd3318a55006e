"""What ends a command from outside costs no step: signals, readers that leave, a parent that dies, a second writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmtransfer.cli import main

pytestmark = pytest.mark.slow

SETTINGS = [
    *("experiment=null", "train.seconds=null", "train.steps=100000", "model=bert_tiny", "objective=mlm"),
    *(
        "corpus=text",
        "corpus.path=texts",
        "tokenizer.vocab_size=60",
        "tokenizer.allow_fewer=true",
        "train.batch_tokens=512",
        "train.log_every=1",
    ),
]
PRETRAIN = ["pretrain", *SETTINGS, "name=x"]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder with a small corpus."""
    words = [f"{start}{middle}{end}" for start in "bdfgk" for middle in "aeiou" for end in "lmnrst"]
    (tmp_path / "texts").mkdir()
    lines = (" ".join(words[(7 * row + 11 * place * place) % len(words)] for place in range(12)) for row in range(900))
    (tmp_path / "texts" / "a.txt").write_text("\n".join(f"{line}.\n" if row % 6 == 5 else f"{line}."
                                                        for row, line in enumerate(lines)))  # fmt: skip
    return tmp_path


@dataclass
class Started:
    """A command that runs.

    Attributes:
        process: its process, the leader of a session.
        world: its folder.
    """

    process: subprocess.Popen[Any]
    world: Path

    def wait_for(self, condition: Callable[[], bool], *, seconds: float = 120) -> None:
        """Wait until something is true while the command runs."""
        until = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                said = "" if self.process.stderr is None else self.process.stderr.read().decode()
                pytest.fail(f"the command ended too early: {said}")
            assert time.monotonic() < until, "the command took too long"
            time.sleep(0.02)

    def wait_for_steps(self, number: int, run: str = "runs/pretrain/x") -> None:
        """Wait until so many steps are logged."""
        self.wait_for(lambda: len(steps(self.world / run)) >= number)


Start = Callable[..., Started]


@pytest.fixture
def start(world: Path) -> Iterator[Start]:
    """Start ``lmtransfer <words>``; whatever is left of it ends with the test."""
    found: list[Started] = []

    def started(words: list[str], **streams: Any) -> Started:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LMTRANSFER_CACHE": str(world / "cache")}
        process = subprocess.Popen(
            [sys.executable, "-m", "lmtransfer", *words],
            cwd=world, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_heed, **streams,
        )  # fmt: skip
        found.append(Started(process, world))
        return found[-1]

    yield started
    for one in found:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def _heed() -> None:
    """Signals as a terminal sets them up: the tests themselves may run under nohup or in a shell's background."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def steps(run: Path) -> list[int]:
    """The steps that were logged."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def saved(run: Path) -> int | None:
    """The step that is saved."""
    state = run / "checkpoints" / "last" / "state.json"
    return int(json.loads(state.read_text())["step"]) if state.is_file() else None


@pytest.mark.parametrize(
    ("signals", "workers"),
    [
        ([signal.SIGINT] * 4, 0),
        ([signal.SIGTERM, signal.SIGHUP], 1),
        ([signal.SIGTERM] * 5, 1),
        ([signal.SIGUSR1], 0),
        ([signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1], 2),
    ],
    ids=str,
)
def test_signals_cost_no_step(signals: list[signal.Signals], workers: int, start: Start, world: Path) -> None:
    run = start([*PRETRAIN, f"train.num_workers={workers}"], stderr=subprocess.PIPE)
    run.wait_for_steps(3)
    for number in signals:
        os.killpg(run.process.pid, number)  # as a terminal does: everybody in the group gets it
        time.sleep(0.01)
    _, said = run.process.communicate(timeout=60)
    assert run.process.returncode == 75, said
    assert saved(world / "runs/pretrain/x") == steps(world / "runs/pretrain/x")[-1]
    assert b"Traceback" not in said
    assert b"resume=true" in said


def test_an_evaluation_ends_calmly_whenever_it_is_stopped(
    start: Start, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while Python itself ends: signals keep coming until it has."""
    monkeypatch.chdir(world)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(world / "cache"))
    assert main([*PRETRAIN[:-1], "train.steps=1", "name=base"]) == 0
    shown = tmp_path / "shown"
    with shown.open("wb") as output:
        run = start(["evaluate", "run=runs/pretrain/base"], stdout=output, stderr=output)
        run.wait_for(lambda: shown.stat().st_size > 0)
        while run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
    assert run.process.returncode in (0, 128 + signal.SIGINT), shown.read_text()
    assert "Traceback" not in shown.read_text()


@pytest.mark.parametrize(("streams", "also"), [(("stderr",), None), (("stdout", "stderr"), signal.SIGINT)])
def test_a_reader_that_goes_away_costs_no_step(
    streams: tuple[str, ...], also: signal.Signals | None, start: Start, world: Path
) -> None:
    """As in ``lmtransfer pretrain ... 2>&1 | tee log``, where Ctrl-C ends tee as well."""
    reading, writing = os.pipe()
    run = start(PRETRAIN, **dict.fromkeys(streams, writing))
    os.close(writing)
    run.wait_for_steps(3)
    os.close(reading)
    if also is not None:
        run.process.send_signal(also)
    assert run.process.wait(timeout=60) == 75
    assert saved(world / "runs/pretrain/x") == steps(world / "runs/pretrain/x")[-1]


def test_a_run_has_one_writer_and_the_lock_of_one_that_died_holds_nobody_up(start: Start, world: Path) -> None:
    run = world / "runs/pretrain/x"
    first = start([*PRETRAIN, "train.save_every=1"])
    first.wait_for(lambda: saved(run) is not None)
    second = start([*PRETRAIN, "resume=true"], stderr=subprocess.PIPE)
    _, said = second.process.communicate(timeout=60)
    assert second.process.returncode == 2
    assert f"({first.process.pid})" in said.decode()
    assert b"runs/pretrain/x" in said
    assert first.process.poll() is None
    first.process.kill()
    first.process.wait()
    before = saved(run) or 0
    third = start([*PRETRAIN, "train.save_every=1", "resume=true"])
    # The first may have been killed inside a save, which the third completes before it trains: its own is a step later.
    third.wait_for(lambda: (saved(run) or 0) > before + 1)
    third.process.send_signal(signal.SIGTERM)
    assert third.process.wait(timeout=60) == 75


STUDY = """\
# @package _global_
# One recipe
name: s
recipes: {one: model=bert_tiny objective=mlm}
pretrain: {corpus: text, steps: 100000, words: [%s]}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_run_of_a_study_saves_and_ends_with_it(number: signal.Signals, start: Start, world: Path) -> None:
    words = [word for word in SETTINGS if not word.startswith(("corpus=", "train.s", "model=", "objective="))]
    (world / "mine" / "study").mkdir(parents=True)
    (world / "mine" / "study" / "own.yaml").write_text(STUDY % ", ".join(words))
    study = start(["study", "-cd", "mine", "study=own"], stderr=subprocess.PIPE)
    run = world / "runs/study/s/pretrain/one"
    study.wait_for_steps(2, "runs/study/s/pretrain/one")
    study.process.send_signal(number)
    assert study.process.wait(timeout=60) == (-signal.SIGKILL if number == signal.SIGKILL else 75)
    until = time.monotonic() + 60
    while saved(run) is None and time.monotonic() < until:  # where the study was killed, its run still saves
        time.sleep(0.05)
    time.sleep(0.5)  # one that went on would have trained hundreds of steps meanwhile
    assert saved(run) == steps(run)[-1]


def test_prepare_leaves_no_workers_behind_and_shows_no_traceback(start: Start, world: Path) -> None:
    with (world / "texts" / "a.txt").open() as file:
        text = file.read()
    for number in range(40):
        (world / "texts" / f"{number}.txt").write_text(text * 4)
    words = ["prepare", "corpus=text", "corpus.path=texts", "tokenizer.vocab_size=60", "num_workers=2"]
    run = start(words, stderr=subprocess.PIPE)
    group = run.process.pid

    def workers() -> int:
        return sum(_group_of(path) == group for path in Path("/proc").iterdir() if path.name.isdigit()) - 1

    run.wait_for(lambda: workers() >= 2)
    for _ in range(2):
        os.killpg(group, signal.SIGINT)
    _, said = run.process.communicate(timeout=60)
    assert run.process.returncode == 130
    assert said.decode().strip() == "lmtransfer: interrupted"
    until = time.monotonic() + 10
    while workers() > -1 and time.monotonic() < until:  # a busy machine takes a moment to end them
        time.sleep(0.05)
    assert workers() == -1, "nobody of the group is left"


def _group_of(process: Path) -> int | None:
    """The process group of an entry in /proc; None where it has ended."""
    try:
        state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(group)


_SAVES = "#!/bin/sh\ntrap 'sleep 0.7; echo saved; exit 75' INT\necho ready\nwhile :; do sleep 0.1; done\n"


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ("steps.run_steps([('one', ['a']), ('two', ['b'])])", 75, ["saved"]),
        ("(print('ready', flush=True), time.sleep(60))", 130, ["interrupted"]),
    ],
    ids=["in a command", "between commands"],
)
def test_ctrl_c_in_a_script_lets_its_command_save_and_shows_no_traceback(
    body: str, status: int, named: list[str], tmp_path: Path
) -> None:
    command = tmp_path / "command"
    command.write_text(_SAVES)
    command.chmod(0o755)
    scripts = Path(__file__).parents[2] / "scripts"
    code = (  # also where this process was started with SIGINT ignored
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.path.insert(0, {str(scripts)!r}); import steps; sys.executable = {str(command)!r}; "
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}steps.run_script(lambda: {body})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    said, _ = process.communicate(timeout=30)
    assert process.returncode == status
    assert [name for name in named if name not in said] == []
    assert "Traceback" not in said
