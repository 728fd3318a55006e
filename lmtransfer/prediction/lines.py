"""Lines to be answered, from a file or as they arrive on standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import find_file
from lmtransfer.data.text_lines import EncodingErrors, decode, read_lines
from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming

STANDARD_INPUT = "-"
_PIECE_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"


class Arriving(Protocol):
    """A stream that gives what is there: waits for one byte, not for as many as are asked for."""

    def read1(self, size: int, /) -> bytes: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class InputSource:
    """What ``input=`` names.

    Attributes:
        name: what it is called in messages.
        path: where it is; None for standard input.
        arrives: whether it is read once, as it comes: standard input, or a pipe.
    """

    name: str
    path: Path | None
    arrives: bool


@dataclass(frozen=True, slots=True)
class InputLines:
    """Lines with their numbers, from 1.

    Attributes:
        name: what they are called in messages.
        numbered: numbers and lines, without line ends; one line is in memory at a time.
        path: the file; None where it is read once, as it comes.
    """

    name: str
    numbered: Iterator[tuple[int, str]]
    path: Path | None


def find_input(given: str) -> InputSource:
    """A file, plain or compressed; a pipe; or standard input.

    Args:
        given: as the user has it.

    Raises:
        DataError: there is no such file.
    """
    if given == STANDARD_INPUT:
        return InputSource("standard input", None, arrives=True)
    path = Path(given).expanduser()
    found = find_file(path) if path.name else None
    if found is not None:
        return InputSource(str(found), found, arrives=False)
    if path.exists() and not path.is_dir():
        return InputSource(given, path, arrives=True)
    raise DataError(f"input={given}: there is no such file; give a file, or - for standard input")


def open_lines(
    source: InputSource, *, encoding_errors: EncodingErrors, notes: Notes, before_waiting: Callable[[], None]
) -> InputLines:
    """The lines of an input.

    Args:
        source: which.
        encoding_errors: ``strict`` refuses bytes that are not UTF-8; ``replace`` puts U+FFFD there and counts them.
        notes: where they are counted.
        before_waiting: called whenever what arrives has nothing more at the moment.
    """
    name, path = source.name, source.path
    if path is not None and not source.arrives:
        return InputLines(name, read_lines(path, encoding_errors=encoding_errors, notes=notes), path)
    return InputLines(name, _arriving(path, name, encoding_errors, notes, before_waiting), None)


def _arriving(
    path: Path | None, name: str, encoding_errors: EncodingErrors, notes: Notes, before_waiting: Callable[[], None]
) -> Iterator[tuple[int, str]]:
    opened: AbstractContextManager[Arriving]
    if path is None and sys.stdin is None:
        raise DataError("input=-: standard input is closed; give a file, or send something there")
    opened = nullcontext(cast(Arriving, sys.stdin.buffer)) if path is None else path.open("rb")
    with opened as stream:
        yield from arriving_lines(stream, name, encoding_errors, notes, before_waiting)


def arriving_lines(
    stream: Arriving,
    name: str,
    encoding_errors: EncodingErrors,
    notes: Notes,
    before_waiting: Callable[[], None],
) -> Iterator[tuple[int, str]]:
    """The lines of a stream, each as soon as its end is there.

    Args:
        stream: gives bytes as they arrive.
        name: what it is called in messages.
        encoding_errors: see ``open_lines``.
        notes: where odd things are counted.
        before_waiting: called before each request for more bytes.

    Raises:
        DataError: bytes that are not UTF-8, with ``name:line``.
    """
    number = 0
    held: list[bytes] = []
    while True:
        before_waiting()
        with naming(name):
            piece = stream.read1(_PIECE_BYTES)
        if piece and b"\n" not in piece:
            held.append(piece)
            continue
        *whole, rest = b"".join([*held, piece]).split(b"\n")
        held = [rest]
        if not piece and rest:
            whole = [rest]
        for raw in whole:
            number += 1
            if number == 1 and raw.startswith(_BOM):
                notes.add("byte order marks dropped", f"{name}:1")
                raw = raw.removeprefix(_BOM)
            yield number, decode(raw.rstrip(b"\r"), f"{name}:{number}", encoding_errors, notes)
        if not piece:
            return
