"""What is asked: a text, a file, or lines as they arrive on standard input; as examples of what answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import find_file, plain_name
from lmtransfer.data.text_lines import EncodingErrors, decoded, read_lines
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.prediction.answers_in_order import AnswersInOrder
from lmtransfer.system.machine import naming
from lmtransfer.tasks.asking import Asked, Reader

STANDARD_INPUT = "-"
_OF_SUFFIX = {
    ".txt": "lines",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conll": "conll",
    ".conllu": "conllu",
}
_PIECE_BYTES = 1 << 16


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

    def check_apart(self, output: str) -> None:
        """Refuse to write answers over the texts that are answered.

        Raises:
            ConfigError: ``output`` is the input.
        """
        place = Path(output).expanduser()
        if self.path is not None and place.exists() and self.path.samefile(place):
            raise ConfigError(f"output={output}: is the input, which would be lost; name another file")


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


def input_format(given: str | None, source: InputSource, reader: Reader) -> str:
    """The format of the input.

    Args:
        given: what the user says; None: by the file's name.
        source: the file; what arrives as it is read has lines unless the user says more.
        reader: of the task, or of masked texts.

    Raises:
        ConfigError: it cannot be told, or there is no reading of such files.
    """
    if given is not None:
        found, why = given, f"format={given}"
    elif source.path is None or source.arrives:
        return "lines"
    else:
        suffix = Path(plain_name(source.path)).suffix.lower()
        found = (reader.json_format if suffix == ".json" else _OF_SUFFIX.get(suffix)) or ""
        why = f"input={source.name}: its name does not say how it is written"
    if found not in reader.formats:
        raise ConfigError(f"{why}: {reader.kind} reads {', '.join(reader.formats)}; set format= to one of these")
    if source.arrives and found in reader.file_only:
        raise ConfigError(f"format={found}: is read from a file; what arrives through a pipe may be lines, or jsonl")
    return found


def asked(
    source: InputSource,
    file_format: str,
    columns: Mapping[str, str],
    answers: AnswersInOrder,
    notes: Notes,
    *,
    encoding_errors: EncodingErrors = "strict",
) -> Asked:
    """An input, to be read.

    Args:
        source: which.
        file_format: how it is written.
        columns: those that the user names.
        answers: takes what is no example, and writes what it holds before anything is waited for.
        notes: where odd things are counted.
        encoding_errors: ``strict`` refuses bytes that are not UTF-8; ``replace`` puts U+FFFD there and counts them.
    """
    if source.path is None and sys.stdin is not None and sys.stdin.isatty():
        print("one line each; end with Ctrl-D", file=sys.stderr)
    if source.path is None or source.arrives:
        path, lines = None, _arriving(source.path, source.name, encoding_errors, notes, answers.flush)
    else:
        path, lines = source.path, read_lines(source.path, encoding_errors=encoding_errors, notes=notes)
    return Asked(source.name, lines, path, file_format, columns, answers.stops, answers.refuse, notes)


def one_example(text: str, reader: Reader) -> Any:
    """The example of ``text=``.

    Raises:
        ConfigError: it is no text, or no two texts where two are read.
    """
    try:
        return reader.of_line(text, "text", "text", Notes())
    except ValueError as problem:
        raise ConfigError(f"text={text[:60]}: {problem}") from None


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
        encoding_errors: see ``asked``.
        notes: where odd things are counted.
        before_waiting: called before each request for more bytes.

    Raises:
        DataError: bytes that are not UTF-8, with ``name:line``.
    """
    return decoded(_as_they_end(stream, name, before_waiting), name, encoding_errors, notes)


def _as_they_end(stream: Arriving, name: str, before_waiting: Callable[[], None]) -> Iterator[bytes]:
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
        yield from whole
        if not piece:
            yield from filter(None, held)
            return
