"""Processes that wait for each other at the start say so, heed signals, and give up."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import pytest
from support import PYTHONPATH
from support.refusals import refuses

from lmtransfer.errors import MachineError
from lmtransfer.training import process_group

PRETRAIN = (
    *("pretrain", "experiment=null", "model=bert_tiny", "objective=mlm", "corpus=text", "corpus.path=text.txt"),
    *("optimizer=adamw", "train.steps=2", "train.seconds=null", "tokenizer.vocab_size=60", "name=x"),
)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, at which this process is to meet others that never come."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": number, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(process_group, "_PATIENCE", 0.1)
    return number


@pytest.mark.parametrize(
    ("rank", "world_size", "whom"),
    [
        (0, 2, "1 other process (rank 1)"),
        (0, 12, "11 other processes (rank 1, 2, 3, "),
        (1, 2, "rank 0"),
        (3, 4, "rank 0"),
    ],
)
def test_who_waits_says_for_whom_where_since_when_and_gives_up(
    rank: int,
    world_size: int,
    whom: str,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    names = (f"rank {rank} waits", whom, f"127.0.0.1:{port}", f"WORLD_SIZE={world_size}", "unset")
    start = time.monotonic()
    with refuses(MachineError, *names, "hardware.wait_seconds=0.4"), process_group.join(0.4):
        pass
    assert time.monotonic() - start < 5
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert all(name in told for name in names)
    assert re.search(r"since \d\d:\d\d:\d\d", told)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_the_waiting_at_once(rank: int, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Signalled(Exception):
        pass

    def handle(number: int, frame: FrameType | None) -> None:
        raise Signalled

    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.signal(signal.SIGALRM, handle)
    start = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Signalled), process_group.join(60):
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_busy_port_is_named_with_a_way_out(address: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", address)
    names = (f"{address}:{port}", "MASTER_PORT", "--standalone")
    both = socket.has_dualstack_ipv6()
    with (
        socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both),
        refuses(MachineError, *names),
        process_group.join(20),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "rank", "code"), [(signal.SIGTERM, 0, 143), (signal.SIGINT, 0, 130), (signal.SIGTERM, 1, 143)]
)
def test_variables_left_over_in_the_shell_are_named_and_signals_end_the_command(
    number: signal.Signals, rank: int, code: int, port: int, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(f"the boat number {row} lay on the shore" for row in range(80)))
    environment = {
        **{**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
        "LMTRANSFER_CACHE": str(tmp_path / "cache"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "lmtransfer", *PRETRAIN],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=_default_signals,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert f"rank {rank} waits for" in told, told + process.stderr.read()
        process.send_signal(number)
        assert process.wait(timeout=20) == code
    finally:
        process.kill()
    assert not (tmp_path / "runs").exists()


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
