"""Reading files that another person may have written: only regular files, and at most the expected number of bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lmtransfer.errors import LmtransferError

#: Highest size in bytes of a document: a configuration, a state, a result.
DOCUMENT_BYTES = 1 << 26
#: Highest size in bytes of a file that is read line by line, or of a tokenizer's model.
LARGEST_BYTES = 1 << 31

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
        content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise error(f"{path}: has more than {most:,} bytes, which is the maximum for such a file")
    return content


def _not_regular(mode: int) -> str | None:
    kind = next((what for is_kind, what in _KINDS if is_kind(mode)), None)
    return None if kind is None else f"is {kind}, but must be a regular file: replace it with the file itself"


def _reason(fault: OSError | ValueError) -> str:
    return getattr(fault, "strerror", None) or str(fault)  # a ValueError: its name contains a NUL
