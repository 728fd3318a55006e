"""Creates and locks a run's folder, removes it if nothing was saved, and checks whether a run can be resumed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmtransfer.config.settings import is_without_effect
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.runs.labels import flatten
from lmtransfer.system.durable import remove
from lmtransfer.system.safe_files import check_folder

LOCK = ".lock"
#: The files that a run has before its ``config.yaml``, which is written last.
BEGINNINGS = frozenset({LOCK, "versions.json", "tokenizer", "checkpoints"})
_WORTH_KEEPING = 100  # minimum logged steps of a failed run that is kept, because its curves help to find the cause
_INITIAL = "tokens-0"  # the checkpoint of the initial weights, which need no training
#: The settings of a run's length.
_BUDGET = ("train.steps", "train.tokens", "train.epochs", "train.seconds")
_held: dict[Path, int] = {}
_created: list[Path] = []
_above: dict[Path, list[Path]] = {}
_ABSENT = object()


class Busy(Exception):
    """Raised if another process (with this id, if known) is writing the run."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


def hold(folder: Path) -> None:
    """Hold the lock of ``folder`` until the command ends; a dead process's lock does not block.

    Also remove the incomplete files that a killed writer has left in the folder.

    Raises:
        Busy: another process is writing the run.
    """
    if holds(folder):
        return
    release(folder)
    while True:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            # The lock belongs to this process, so its workers do not keep the lock after it ends.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            content = os.read(descriptor, 32).strip()
            os.close(descriptor)
            raise Busy(int(content) if content.isdigit() else None) from None
        except OSError:  # the file system has no locks
            pass
        _held[folder] = descriptor
        if _is_current(folder):  # false if the folder was removed and created again in the meantime
            break
        release(folder)
    for staged in _staged_in(folder):  # left by a killed writer: no other process writes here
        remove(staged)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _staged_in(folder: Path) -> list[Path]:
    """Return the temporary files in a run and its nested runs, except runs with a lock of their own."""
    staged = []
    for path in folder.iterdir():
        if path.name.startswith(".") and path.name.endswith(".tmp"):
            staged.append(path)
        elif path.is_dir() and not path.is_symlink() and not (path / LOCK).exists():
            staged += _staged_in(path)
    return staged


def holds(folder: Path) -> bool:
    """Whether this process holds the lock of ``folder``."""
    return folder in _held and _is_current(folder)


def writer(folder: Path) -> int | None:
    """Return the id of another process on this machine that holds the lock of ``folder``; None if there is none.

    The id is 0 if the process holds the lock but has not written its id yet.
    """
    if holds(folder):
        return None  # closing the file would release the lock
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        content = os.read(descriptor, 32).strip()
        return int(content) if content.isdigit() else 0
    except OSError:  # the file system has no locks
        return None
    finally:
        os.close(descriptor)  # this also releases the lock
    return None


def release(folder: Path) -> None:
    """Release the lock of ``folder``."""
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def check_run_folder(folder: Path) -> None:
    """Check that a folder exists and is a run directory."""
    remedy = "give the folder of a run, such as runs/pretrain/<name>"
    if not folder.is_dir():
        raise RunDirectoryError(f"there is no run directory {folder}: {remedy}")
    if not (folder / "config.yaml").is_file():
        raise RunDirectoryError(f"{folder} is not a run directory (it has no config.yaml): {remedy}")


def create_run_folder(folder: Path, *, resume: bool) -> str | None:
    """Create the directory of a run and take its lock.

    A folder left by a process that was killed before it wrote the configuration is not a run; it is cleared first.

    Returns:
        An error message, or None on success.
    """
    config = folder / "config.yaml"
    exists_already = (
        f"the run {folder} already exists: choose another name (name=...), continue it with resume=true, or delete the "
        "folder"
    )
    try:
        with contextlib.suppress(FileExistsError):
            make_folder(folder)
        if not folder.is_dir():
            return f"{folder} exists and is not a folder: choose another name (name=...), or move the file away"
        begins = not (config.exists() or holds(folder)) and is_beginning(folder)
        if not begins and not resume:
            return exists_already
        hold(folder)
        if config.exists() and not resume:  # another process was faster
            release(folder)
            return exists_already
        if begins and not config.exists():
            clear(folder)
        check_folder(folder, error=RunDirectoryError)
    except Busy as busy:
        other = "another process" if busy.pid is None else f"another process ({busy.pid})"
        return (
            f"{other} is writing the run {folder}, and only one process may write a run: wait until that process ends, "
            "or stop it with Ctrl-C or SIGTERM (it will save the run)"
        )
    except RunDirectoryError as error:
        return str(error)
    except OSError as error:
        reason = error.strerror or str(error)
        return f"cannot create the run directory {folder}: {reason}; set output_root=<another folder>"
    return None


def is_beginning(folder: Path) -> bool:
    """Whether a folder holds only what a run killed at its start leaves behind: no config, checkpoint or the like."""
    names = [path.name for path in folder.iterdir()]
    return all(name in BEGINNINGS or name.endswith(".tmp") for name in names) and not _holds_work(folder)


def clear(folder: Path) -> None:
    """Remove everything in ``folder`` except its lock."""
    for path in folder.iterdir():
        if path.name != LOCK:
            remove(path)


@contextmanager
def remove_failed_starts() -> Iterator[None]:
    """Release the locks taken in the block at its end; if it raises, first remove new runs that have saved nothing."""
    held, before = set(_held), len(_created)
    try:
        yield
    except BaseException:
        for folder in reversed(_created[before:]):
            if folder.is_dir() and not _holds_work(folder):
                shutil.rmtree(folder, ignore_errors=True)
                _remove_parents(folder)
        raise
    finally:
        del _created[before:]
        for folder in set(_held) - held:
            release(folder)


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its parents; on an error, leave none of them behind."""
    missing = [above for above in folder.parents if not above.exists()]
    try:
        folder.mkdir(parents=True)
    except OSError:
        with contextlib.suppress(OSError):
            for above in missing:
                if above.is_dir():
                    above.rmdir()
        raise
    _above[folder] = missing
    _created.append(folder)


def _remove_parents(folder: Path) -> None:
    with contextlib.suppress(OSError):  # a parent is not empty
        for above in _above.pop(folder, []):
            above.rmdir()


def _holds_work(folder: Path) -> bool:
    """Whether a run holds valuable work: a result, a checkpoint, learning rate tries or long curves."""
    with contextlib.suppress(OSError), (folder / "metrics.jsonl").open("rb") as lines:
        if sum(1 for _ in lines) >= _WORTH_KEEPING:
            return True
    patterns = ("result.json", "tries/*.json", "checkpoints/*/manifest.json")
    paths = (path for pattern in patterns for path in folder.rglob(pattern))
    return any(path.parent.name != _INITIAL for path in paths)


def _is_current(folder: Path) -> bool:
    try:
        there = (folder / LOCK).stat()
    except OSError:
        return False
    own = os.fstat(_held[folder])
    return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> None:
    """Raise an error if settings that affect training have changed since the run started.

    Args:
        allowed: patterns of dotted keys that may change, besides the keys without effect on training.
    """
    before, after = flatten(old), flatten(new)
    problems = []
    for key in sorted(before.keys() | after.keys()):
        if is_without_effect(key, also=allowed):
            continue
        was, now = (
            list(value) if isinstance(value, tuple) else value
            for value in (before.get(key, _ABSENT), after.get(key, _ABSENT))
        )
        if was != now:
            way = "start a new run with another name (name=...)"
            if key in _BUDGET and "task" not in new:  # the learning rates that were used belong to the old budget
                way = "start a new run from the weights of this one (init=<this run> name=<new name>)"
            problems.append(
                f"{key} was {_as_text(was)} when the run started, but is {_as_text(now)} now: it must not change on "
                f"resume; restore the old value, or {way}"
            )
    if problems:
        raise ConfigError(problems)


def _as_text(value: Any) -> str:
    return "absent" if value is _ABSENT else "null" if value is None else repr(value)
