"""One writer a run directory, and nothing left of a run that failed before it had anything to keep."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmtransfer.system.durable import remove

LOCK = ".lock"
#: What there is of a run before it has its configuration, which is written last.
BEGINNINGS = frozenset({LOCK, "versions.json", "tokenizer", "checkpoints"})

_WORTH_READING = 100  # logged steps: the curves of so long a training tell what went wrong

_held: dict[Path, int] = {}
_begun: list[Path] = []
_above: dict[Path, list[Path]] = {}


class Busy(Exception):
    """Another process writes the run.

    Args:
        pid: its number; None where it cannot be told.
    """

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


def hold(folder: Path) -> None:
    """Be the one process that writes ``folder``, until the command ends; the lock of one that died holds nobody up.

    Raises:
        Busy: another process writes it.
        OSError: the folder is gone or cannot be written.
    """
    if holds(folder):
        return
    release(folder)
    while True:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            # Of the process, so that its workers do not hold it on.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            said = os.read(descriptor, 32).strip()
            os.close(descriptor)
            raise Busy(int(said) if said.isdigit() else None) from None
        except OSError:  # a file system without locks
            pass
        _held[folder] = descriptor
        if _is_current(folder):  # not that of a folder which has been removed meanwhile
            break
        release(folder)
    for staged in _staged_in(folder):  # of a writer that was killed: there is no other
        remove(staged)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _staged_in(folder: Path) -> list[Path]:
    """What is staged in a run and in the runs within it, but for those that have a writer of their own."""
    found = []
    for path in folder.iterdir():
        if path.name.startswith(".") and path.name.endswith(".tmp"):
            found.append(path)
        elif path.is_dir() and not path.is_symlink() and not (path / LOCK).exists():
            found += _staged_in(path)
    return found


def holds(folder: Path) -> bool:
    """Whether this process is the one that writes ``folder``."""
    return folder in _held and _is_current(folder)


def release(folder: Path) -> None:
    """Let others write ``folder``."""
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def is_beginning(folder: Path) -> bool:
    """Whether a folder is what a start leaves that was killed: no configuration, no checkpoint, nothing of others."""
    return all(path.name in BEGINNINGS or path.name.endswith(".tmp") for path in folder.iterdir()) and not _kept(folder)


def clear(folder: Path) -> None:
    """Remove what is in ``folder`` but for its lock."""
    for path in folder.iterdir():
        if path.name != LOCK:
            remove(path)


@contextmanager
def failed_starts_removed() -> Iterator[None]:
    """Remove, where the block ends by an error, each run that it began and that has nothing to go on from yet."""
    held, before = set(_held), len(_begun)
    try:
        yield
    except BaseException:
        for folder in reversed(_begun[before:]):
            if folder.is_dir() and not _kept(folder):
                shutil.rmtree(folder, ignore_errors=True)
                _remove_made(folder)
        raise
    finally:
        del _begun[before:]
        for folder in set(_held) - held:
            release(folder)


def make_folder(folder: Path) -> None:
    """Make ``folder`` with those above it, or leave none of them behind.

    Raises:
        OSError: it cannot be made.
    """
    made = [above for above in folder.parents if not above.exists()]
    try:
        folder.mkdir(parents=True)
    except OSError:
        with contextlib.suppress(OSError):
            for above in made:
                if above.is_dir():
                    above.rmdir()
        raise
    _above[folder] = made
    _begun.append(folder)


def _remove_made(folder: Path) -> None:
    """Remove the folders that were made for the sake of ``folder``, where nothing else is in them."""
    with contextlib.suppress(OSError):  # not empty
        for above in _above.pop(folder, []):
            above.rmdir()


def _kept(folder: Path) -> bool:
    """Whether there is anything in a run that cost work."""
    with contextlib.suppress(OSError), (folder / "metrics.jsonl").open("rb") as lines:
        if sum(1 for _ in lines) >= _WORTH_READING:
            return True
    patterns = ("result.json", "learning_rate_tries.json", "checkpoints/*/manifest.json")
    return any(next(folder.rglob(pattern), None) is not None for pattern in patterns)


def _is_current(folder: Path) -> bool:
    """Whether the lock that is held is that of the folder which is there now."""
    try:
        there = (folder / LOCK).stat()
    except OSError:
        return False
    mine = os.fstat(_held[folder])
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
