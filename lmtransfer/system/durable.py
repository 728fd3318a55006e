"""Files that are complete or absent: staged beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lmtransfer.system.machine import naming

_CHUNK_BYTES = 1 << 20
_HERE = re.sub(r"[^A-Za-z0-9]+", "", platform.node())[:20] or "here"


def flush(path: Path) -> None:
    """Make what was written to ``path`` (a file, or a folder's entries) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems refuse to flush a folder; none refuses a file without a reason
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the contents of ``path``, so that it holds the whole of the new text, or what it held before."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the contents of ``path``, so that it holds the whole of the new, or what it held before."""
    staged = _staged(path)
    try:
        with naming(path):
            staged.write_bytes(content)
            flush(staged)
            staged.replace(path)
            flush(path.parent)
    except BaseException:
        remove(staged)
        raise


def reserve(path: Path) -> None:
    """Give a file that is to be written through memory all the room that it is long.

    Where the disk were found full later, the system would end the process.

    Raises:
        OSError: there is no room.
    """
    if hasattr(os, "posix_fallocate"):
        with naming(path), path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, os.fstat(file.fileno()).st_size))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON so that ``path`` holds the whole of it, or what it held before."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")


def clear_abandoned(folder: Path) -> None:
    """Remove from ``folder`` what processes of this machine have staged there that were killed meanwhile."""
    for path in folder.glob(f".*.{_HERE}-*.tmp"):
        pid = path.name.removesuffix(".tmp").rpartition("-")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with what is in it; of a link, the link. What cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _staged(path: Path) -> Path:
    """Where ``path`` is written before it is put in its place; tells which process of which machine does it."""
    return path.with_name(f".{path.name}.{_HERE}-{os.getpid()}.tmp")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` when the block ends without an error, and vanishes otherwise.

    What was at ``folder`` before is replaced.
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
def made(folder: Path) -> Iterator[None]:
    """See that ``folder`` is there; where the block fails, what was made of it, and above it, is removed."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if new:
            remove(folder)
        with suppress(OSError):  # something else has come there
            for path in new[1:]:
                path.rmdir()
        raise


def file_hash(path: Path) -> str:
    """128-bit hex digest of a file's bytes, read in pieces."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
