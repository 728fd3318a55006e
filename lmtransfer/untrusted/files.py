"""Reading files that another person may have written.

A folder of someone else (a run, a published model, a local data set) is checked once, when it is opened, by
``check_folder``: it holds only regular files and folders, and no link leads out of it. Each file is then read by
``opened`` or ``read_bytes``, which check again that it is regular, and its size before its content; what it holds is
checked against a schema (see ``documents``). Content that cannot be parsed appears in no message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lmtransfer.errors import LmtransferError

#: Highest size in bytes of a document: a configuration, a state, a result.
DOCUMENT_BYTES = 1 << 26
#: Highest size in bytes of a file that is read line by line, or of a tokenizer's model.
LARGEST_BYTES = 1 << 31

_REPLACE = "replace it with the file itself"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def not_regular(path: Path) -> str | None:
    """The problem of a file that is not regular, so that reading might never end; None if it is regular.

    Args:
        path: path of the file; links are followed.
    """
    try:
        return _not_regular(path.stat().st_mode)
    except (OSError, ValueError) as fault:
        return f"cannot be read ({_reason(fault)})"


def check_folder(folder: Path, *, error: type[LmtransferError]) -> None:
    """Check that everything in a folder is a regular file or a folder, and that its links lead to places in it.

    In a copy in the hub's cache, links may also lead to the ``blobs`` of that cache. Two kinds of folders are never
    read, so their links may lead anywhere: hidden ones (``.git``) and ``trackers``, where W&B keeps links to its logs.

    Args:
        folder: the folder; it may be a link itself.
        error: class of the error to raise.

    Raises:
        LmtransferError: of the class ``error``; the message names the entry.
    """
    real = Path(os.path.realpath(folder))
    blobs = next((above.parent / "blobs" for above in real.parents if above.name == "snapshots"), None)
    for entry in _entries(real):
        path = folder / Path(entry.path).relative_to(real)
        with suppress(OSError):  # a link to a missing file
            problem = None if entry.is_dir() else _not_regular(entry.stat().st_mode)
            if problem is not None:
                raise error(f"{path}: {problem}")
        if entry.is_symlink():
            target = Path(os.path.realpath(entry.path))
            if not target.is_relative_to(real) and not (blobs is not None and target.is_relative_to(blobs)):
                raise error(f"{path}: is a link to {target}, which is outside its folder: {_REPLACE}")


def _entries(folder: Path, *, at_top: bool = True) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder, except below links and in folders that are not read or may not be."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            yield entry
            is_read = entry.name != "trackers" and not (at_top and entry.name.startswith("."))
            if is_read and entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), at_top=False)


@contextmanager
def opened(path: Path, *, error: type[LmtransferError]) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading; gives the file and its size in bytes.

    Args:
        path: path of the file; links are followed.
        error: class of the error to raise.

    Raises:
        LmtransferError: of the class ``error``: it is missing, cannot be read, or is not a regular file.
    """
    problem = not_regular(path)
    if problem is not None:
        raise error(f"{path}: {problem}")
    try:
        # It may be a pipe by now; do not wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            problem = _not_regular(status.st_mode)
            if problem is not None:
                raise error(f"{path}: {problem}")
            yield file, status.st_size
    except OSError as fault:
        raise error(f"{path}: cannot be read ({_reason(fault)})") from None


def read_bytes(path: Path, *, error: type[LmtransferError], most: int = DOCUMENT_BYTES) -> bytes:
    """Read a whole file.

    Args:
        path: path of the file; links are followed.
        error: class of the error to raise.
        most: maximum size in bytes.

    Raises:
        LmtransferError: of the class ``error``: see ``opened``; or it is larger than ``most``.
    """
    with opened(path, error=error) as (file, size):
        content = file.read(size + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise error(f"{path}: has more than {most:,} bytes, which is the maximum for such a file")
    return content


def _not_regular(mode: int) -> str | None:
    kind = next((what for is_kind, what in _KINDS if is_kind(mode)), None)
    return None if kind is None else f"is {kind}, but must be a regular file: {_REPLACE}"


def _reason(fault: OSError | ValueError) -> str:
    return getattr(fault, "strerror", None) or str(fault)  # a ValueError: its name contains a NUL
