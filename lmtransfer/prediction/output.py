"""The output of ``predict``: standard output, written at once, or a file that is either complete or absent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lmtransfer.errors import DataError, RunDirectoryError
from lmtransfer.system.durable import remove
from lmtransfer.system.machine import naming

STANDARD_OUTPUT = "-"

Write = Callable[[Sequence[dict[str, Any]]], None]


@contextmanager
def open_output(given: str, *, overwrite: bool) -> Iterator[Write]:
    """A context that gives a function which writes objects as JSON lines.

    A file is written as ``<output>.partial`` and renamed at the end. After an error the partial file has the answers so
    far, unless writing failed or it is empty; then it is deleted.

    Args:
        given: the file, or ``-``.
        overwrite: whether an existing file may be replaced.

    Raises:
        RunDirectoryError: the file exists already, or its folder does not exist.
    """
    if given == STANDARD_OUTPUT:
        yield _writer(sys.stdout, "standard output")
        return
    path = free_place(given, overwrite=overwrite)
    partial = path.with_name(f"{path.name}.partial")
    try:
        stream = partial.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise RunDirectoryError(f"output={given}: {partial} cannot be written ({error.strerror})") from None
    try:
        try:
            yield _writer(stream, str(path))
        finally:
            with naming(path):
                stream.close()
    except BaseException as error:
        is_torn = isinstance(error, OSError) and error.filename == str(path)
        if is_torn or not partial.stat().st_size:
            remove(partial)
        raise
    partial.replace(path)


def free_place(given: str, *, overwrite: bool) -> Path:
    """The path of ``output=``, after a check that it can be written.

    Raises:
        RunDirectoryError: the path is a folder, the file exists already, or its folder does not exist.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        raise RunDirectoryError(f"output={given}: is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise RunDirectoryError(f"output={given}: already exists; name another file, or set overwrite=true")
    if not path.parent.is_dir():
        raise RunDirectoryError(f"output={given}: there is no folder {path.parent}; create it first")
    return path


def _writer(stream: TextIO, name: str) -> Write:
    """A function that writes and flushes each group at once, so that a reader of the stream gets it without delay."""
    plain_ascii = (stream.encoding or "").lower().replace("-", "") != "utf8"

    def write(lines: Sequence[dict[str, Any]]) -> None:
        with naming(name):
            for line in lines:
                stream.write(json_line(line, ascii_only=plain_ascii) + "\n")
            stream.flush()

    return write


def json_line(line: dict[str, Any], *, ascii_only: bool = False) -> str:
    """One object as one line of JSON.

    Raises:
        DataError: the object has a number that is not finite, which JSON cannot represent.
    """
    try:
        return json.dumps(line, ensure_ascii=ascii_only, allow_nan=False)
    except ValueError:
        raise DataError(
            f"{line.get('id')}: the answer of the run has numbers that are not finite; its weights cannot be used (did "
            "its training diverge?)"
        ) from None
