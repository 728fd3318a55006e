"""What all tests share: no network, the data folder if there is one, the command line, and folders to run it in."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.cuda.device import FakeCuda, NotPossible
from omegaconf import OmegaConf

# Set before any test module imports a library that reads them, and inherited by every process that a test starts.
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
# One thread a process, since tests run beside each other, and little spinning where a test starts more; a user's own
# settings win.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
MAX_WORKERS = 8  # some 700 MB each

_connect = socket.socket.connect


def _connect_here_only(self: socket.socket, address: Any) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a test may not use the network: {address}")
    _connect(self, address)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """What ``-n auto`` means: the cores that this process may use, hyperthreads too."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # pytest-xdist reads it
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_WORKERS)


def pytest_collection_finish() -> None:
    """What is loaded by now stays until the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Connections to other machines fail at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _connect_here_only)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Written files are not forced onto the disk: no test cuts the power, and each run has dozens of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def configs_parsed_once() -> Iterator[None]:
    """Hydra parses some twenty YAML files for each command; here a process parses each content once."""
    load, parsed = OmegaConf.load, dict[str, bytes]()

    def load_once(file: Any) -> Any:
        is_open = hasattr(file, "read")
        content = file.read() if is_open else Path(file).read_text(encoding="utf-8")
        if content not in parsed:
            if is_open:
                file.seek(0)
            parsed[content] = pickle.dumps(load(file))
        return pickle.loads(parsed[content])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(load_once))
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The data folder named by LMTRANSFER_DATA; the test is skipped without it."""
    folder = os.environ.get("LMTRANSFER_DATA")
    if not folder:
        pytest.skip("LMTRANSFER_DATA names no data folder")
    if not Path(folder).is_dir():
        pytest.skip(f"LMTRANSFER_DATA={folder} is not a folder")
    return Path(folder)


@pytest.fixture(scope="session")
def fake_cuda() -> Iterator[FakeCuda]:
    """A process with a fake CUDA device; the test is skipped where there cannot be one."""
    try:
        device = FakeCuda()
    except NotPossible as reason:
        pytest.skip(str(reason))
    yield device
    device.close()


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``lmtransfer <words>`` in a process of its own, in an empty folder, with one thread.

    The result has ``returncode``, ``stdout`` and ``stderr``; nothing is asserted. Keywords set the environment
    (``LMTRANSFER_DATA=None`` unsets), ``cwd`` the folder, ``timeout`` the seconds allowed.
    """

    def run(
        *words: str | Path, cwd: Path | None = None, timeout: float = 240, **environment: str | None
    ) -> subprocess.CompletedProcess[str]:
        changed = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", **environment}
        whole = {**os.environ, **{key: value for key, value in changed.items() if value is not None}}
        for key in [key for key, value in changed.items() if value is None]:
            whole.pop(key, None)
        return subprocess.run(
            [sys.executable, "-m", "lmtransfer", *map(str, words)],
            cwd=cwd or tmp_path,
            env=whole,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@contextmanager
def _same_threads() -> Iterator[None]:
    """PyTorch has as many threads afterwards as before."""
    import torch  # only here, since it reads the variables above

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def text_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with ``text.txt``, which is the current one, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    documents = [f"the boat lay on the shore number {number} all day while rain fell" for number in range(80)]
    Path("text.txt").write_text("\n\n".join(documents) + "\n")
    with _same_threads():
        yield tmp_path


@pytest.fixture
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what the fixture ``made`` of a file of tests has made, which is the current folder.

    The cache is empty but for the key of the user, who is the same.
    """
    shutil.copytree(made, tmp_path / "world")
    (tmp_path / "cache").mkdir()
    if (key := made / "cache" / "made_here.key").is_file():
        shutil.copy(key, tmp_path / "cache")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    with _same_threads():
        yield tmp_path / "world"
