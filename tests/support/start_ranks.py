"""Starts ranks as ``torchrun`` does, in processes forked from one that has imported PyTorch and the package already."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmtransfer import cli

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *(f"lmtransfer.commands.{command}" for command in ("evaluate", "finetune", "pretrain")),
        *("lmtransfer.launch.sweep", "support.families", "support.ranks"),
    ]
)


def start_ranks(function: Callable[..., object], *arguments: Any, ranks: int, folder: Path) -> None:
    """Run a function of a module in ``folder`` on this many ranks; fail with what they print if one of them fails."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        _SERVER.Process(target=_rank, args=(rank, ranks, port, folder, function, *arguments)) for rank in range(ranks)
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
        codes = [process.exitcode for process in processes]
        assert codes == [0] * ranks, (codes, *((folder / f"rank-{rank}.log").read_text() for rank in range(ranks)))
    finally:
        for process in processes:
            process.kill()


def start_command(*words: str, ranks: int, folder: Path) -> None:
    """Run ``lmtransfer <words>`` in ``folder`` on this many ranks, with its cache there."""
    start_ranks(_command, words, ranks=ranks, folder=folder)


def _rank(rank: int, ranks: int, port: int, folder: Path, function: Callable[..., object], *arguments: Any) -> None:
    if ranks > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(number) for name, number in numbers.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    os.environ.update({"OMP_NUM_THREADS": "1", "LMTRANSFER_CACHE": str(folder)})
    os.chdir(folder)
    with (folder / f"rank-{rank}.log").open("w") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    function(*arguments)


def _command(words: tuple[str, ...]) -> None:
    sys.argv = ["lmtransfer", *words]
    sys.exit(cli.main())
