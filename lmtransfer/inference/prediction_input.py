"""The input of ``predict`` as examples: a text, a file, or lines from standard input as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import describe_splits, find_data, plain_name
from lmtransfer.data.tables import TableLayout, format_by_name
from lmtransfer.data.text_lines import EncodingErrors, decode_lines, read_lines
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.answers_in_order import AnswersInOrder
from lmtransfer.system.machine import naming
from lmtransfer.tasks.input_files import InputFile, Reader

STANDARD_INPUT = "-"
_WORDS = {".conll": "conll", ".conllu": "conllu"}
_PIECE_BYTES = 1 << 16


class IncomingLines(Protocol):
    """A stream that returns the available bytes: it waits only for the first byte, not for the requested number."""

    def read1(self, size: int, /) -> bytes: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class InputSource:
    """The input of ``input=``.

    Attributes:
        name: name for messages.
        path: path of the file, of the ``save_to_disk`` folder or of the pipe; None for standard input.
        arrives: whether it can be read only once, as data arrives: standard input, or a pipe.
    """

    name: str
    path: Path | None
    arrives: bool

    def check_apart(self, output: str) -> None:
        """Raise an error if the output file is the input file.

        Raises:
            ConfigError: ``output`` is the input.
        """
        place = Path(output).expanduser()
        if self.path is not None and place.exists() and self.path.samefile(place):
            raise ConfigError(f"output={output}: is the input file, which would be overwritten; name another file")


def find_input(value: str) -> InputSource:
    """Find a plain or compressed file, a ``datasets.save_to_disk`` folder, a pipe, or standard input.

    Args:
        value: the value of ``input=``.

    Raises:
        DataError: the file does not exist.
    """
    if value == STANDARD_INPUT:
        return InputSource("standard input", None, arrives=True)
    path = Path(value).expanduser()
    file = find_data(path) if path.name else None
    if file is not None:
        return InputSource(str(file), file, arrives=False)
    if path.exists() and not path.is_dir():
        return InputSource(value, path, arrives=True)
    problem = describe_splits(path) or "there is no such file; give a file, or - for standard input"
    raise DataError(f"input={value}: {problem}")


class Reading(Protocol):
    """A reader of an input; see ``Reader`` for the attributes."""

    kind: str
    json_format: str | None

    @property
    def formats(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def file_only(self) -> tuple[str, ...]: ...  # noqa: D102


def input_format(choice: str | None, source: InputSource, reader: Reading, notes: Notes) -> str:
    """Determine the format of the input.

    Args:
        choice: the user's format; None to decide by the file name, and for tab-separated values by quotation marks.
        source: the input; standard input and pipes are ``text`` unless ``choice`` is set.
        reader: the reader of the input: that of the task, of masked texts, or of ``embed``.
        notes: receives a note if the content of the file decided the format.

    Raises:
        ConfigError: the format is unknown, or the reader does not support it.
    """
    if choice is not None:
        file_format, why = choice, f"format={choice}"
    elif source.path is None or source.arrives:
        return "text"
    else:
        suffix = Path(plain_name(source.path)).suffix.lower()
        by_name = _WORDS.get(suffix) or format_by_name(source.path)
        file_format = (reader.json_format if suffix == ".json" else by_name) or ""
        if file_format == "tsv":
            file_format = TableLayout().format_of(source.path, notes)
        why = f"input={source.name}: its file name sets no format"
    if file_format not in reader.formats:
        raise ConfigError(f"{why}: {reader.kind} reads {', '.join(reader.formats)}; set format= to one of these")
    if source.arrives and file_format in reader.file_only:
        others = " or ".join(name for name in reader.formats if name not in reader.file_only)
        raise ConfigError(f"format={file_format}: can be read only from a file; a pipe can have {others}")
    return file_format


def input_file(
    source: InputSource,
    file_format: str,
    columns: Mapping[str, str],
    answers: AnswersInOrder,
    notes: Notes,
    *,
    delimiter: str | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> InputFile:
    """Open an input for reading.

    Args:
        columns: the user's column names.
        delimiter: the character between a table's columns; for the default, see ``TableLayout``.
        answers: takes invalid inputs, and writes its waiting answers before the input waits for more data.
        encoding_errors: ``strict`` raises on bytes that are not UTF-8; ``replace`` replaces (U+FFFD) and counts them.
    """
    path = None if source.arrives else source.path
    lines = lines_of(source, notes, encoding_errors=encoding_errors, before_waiting=answers.flush)
    return InputFile(
        name=source.name,
        lines=lines,
        path=path,
        file_format=file_format,
        columns=columns,
        delimiter=delimiter,
        encoding_errors=encoding_errors,
        stops=answers.stops,
        refuse=answers.refuse,
        notes=notes,
    )


def lines_of(
    source: InputSource,
    notes: Notes,
    *,
    encoding_errors: EncodingErrors = "strict",
    before_waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, str]]:
    """Yield the lines of an input, numbered from 1, without line ends; one line is in memory at a time.

    Args:
        encoding_errors: see ``input_file``.
        before_waiting: called before the input waits for more data.
    """
    if source.path is None and sys.stdin is not None and sys.stdin.isatty():
        print("type one input per line; end with Ctrl-D", file=sys.stderr)
    if source.path is None or source.arrives:
        return _incoming(source.path, source.name, encoding_errors, notes, before_waiting)
    return read_lines(source.path, encoding_errors=encoding_errors, notes=notes)


def one_example(text: str, reader: Reader) -> Any:
    """Read the example in ``text=``.

    Raises:
        ConfigError: the text is invalid, or is not two texts although the task needs two.
    """
    try:
        return reader.parse_line(text, "text", "text", Notes())
    except ValueError as problem:
        raise ConfigError(f"text={text[:60]}: {problem}") from None


def _incoming(
    path: Path | None, name: str, encoding_errors: EncodingErrors, notes: Notes, before_waiting: Callable[[], None]
) -> Iterator[tuple[int, str]]:
    opened: AbstractContextManager[IncomingLines]
    if path is None and sys.stdin is None:
        raise DataError("input=-: standard input is closed; give a file, or send input to it")
    opened = nullcontext(cast(IncomingLines, sys.stdin.buffer)) if path is None else path.open("rb")
    with opened as stream:
        yield from incoming_lines(stream, name, encoding_errors, notes, before_waiting)


def incoming_lines(
    stream: IncomingLines,
    name: str,
    encoding_errors: EncodingErrors,
    notes: Notes,
    before_waiting: Callable[[], None],
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a stream, each as soon as its line end arrives.

    Args:
        stream: provides bytes as they arrive.
        name: name for messages.
        encoding_errors: see ``input_file``.
        before_waiting: called before each request for more bytes.
    """
    return decode_lines(_as_completed(stream, name, before_waiting), name, encoding_errors, notes)


def _as_completed(stream: IncomingLines, name: str, before_waiting: Callable[[], None]) -> Iterator[bytes]:
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
