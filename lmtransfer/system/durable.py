"""Files that are either complete or absent: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, BinaryIO

from lmtransfer.system.machine import naming

_HERE = re.sub(r"[^A-Za-z0-9]+", "", platform.node())[:20] or "here"


def flush(path: Path) -> None:
    """Ensure that the content of ``path`` (a file, or the entries of a folder) survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems cannot flush a folder; for a file, an error is always real
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the content of ``path``; after a crash it holds either all of the new text or the old content."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of ``path``; after a crash it holds either all of the new bytes or the old content."""
    with staged_file(path) as file:
        file.write(content)


def reserve(path: Path) -> None:
    """Reserve disk space for the full length of a file that is written through a memory map.

    Otherwise the system would kill the process if the disk became full during a write.
    """
    if hasattr(os, "posix_fallocate"):
        with naming(path), path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, os.fstat(file.fileno()).st_size))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON; after a crash ``path`` holds either all of it or the old content."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")


def clear_abandoned(folder: Path) -> None:
    """Remove temporary files left in ``folder`` by killed processes of this machine."""
    for path in folder.glob(f".*.{_HERE}-*.tmp"):
        pid = path.name.removesuffix(".tmp").rpartition("-")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link (but not its target), or a folder with its content; keep what cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _staged(path: Path) -> Path:
    """Return the temporary name of ``path``; it contains the machine's name and the process id."""
    return path.with_name(f".{path.name}.{_HERE}-{os.getpid()}.tmp")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


@contextmanager
def staged_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file to write and read; it becomes ``path`` if the block succeeds, otherwise it is removed.

    An existing ``path`` is replaced.
    """
    staged = _staged(path)
    try:
        with naming(path):
            with _opened(staged, path) as file:
                yield file
            flush(staged)
            staged.replace(path)
            flush(path.parent)
    except BaseException:
        remove(staged)
        raise


def _opened(staged: Path, path: Path) -> BinaryIO:
    try:
        return staged.open("w+b")
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder to fill; it becomes ``folder`` if the block succeeds, otherwise it is removed.

    An existing ``folder`` is replaced.
    """
    staged = _staged(folder)
    clear_abandoned(folder.parent)
    shutil.rmtree(staged, ignore_errors=True)
    try:
        with naming(folder):
            staged.mkdir(parents=True)
            yield staged
            for file in staged.rglob("*"):
                if file.is_file():
                    flush(file)
            flush(staged)
            if folder.exists():
                shutil.rmtree(folder)
            staged.replace(folder)
            flush(folder.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextmanager
def ensure_folder(folder: Path) -> Iterator[None]:
    """Ensure that ``folder`` exists; if the block raises, remove the folder and the parents that were created."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if new:
            remove(folder)
        with suppress(OSError):  # a parent is not empty
            for path in new[1:]:
                path.rmdir()
        raise


def file_hash(path: Path) -> str:
    """Return the 128-bit hex digest of a file's bytes."""
    with path.open("rb") as file:
        return file_digest(file, partial(blake2b, digest_size=16)).hexdigest()
