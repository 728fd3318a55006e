"""Reads the input of ``predict`` as examples: a text, a file, or lines from standard input as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import EncodingErrors, decode_lines, describe_splits, find_data, plain_name, read_lines
from lmtransfer.data.tables import TableLayout, format_by_name
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.system.machine import naming
from lmtransfer.tasks.input_files import InputFile, LocatedExample, Reader

OnError = Literal["stop", "skip"]

#: An output line: the JSON object for an example.
JsonObject = dict[str, Any]

_REMEDY = "Fix it, or set on_error=skip to write an error in place of its prediction and continue"


class PredictionsInOrder:
    """Predicts examples in groups and writes the predictions in the order of the examples.

    An example without a valid prediction stops the command after all earlier predictions have been written. With
    ``on_error="skip"``, an object with the ``error`` is written in place of the prediction.

    Args:
        group: maximum number of examples predicted together.
    """

    def __init__(
        self,
        predict: Callable[[Sequence[Any]], Sequence[JsonObject]],
        write: Callable[[Sequence[JsonObject]], None],
        *,
        group: int,
        on_error: OnError,
    ) -> None:
        self._predict, self._write = predict, write
        self._group, self._on_error = group, on_error
        self._pending: list[LocatedExample | JsonObject] = []
        self.num_inputs = self.num_errors = 0

    @property
    def stops(self) -> bool:
        """Whether an example that cannot be predicted stops the command."""
        return self._on_error == "stop"

    def predict_all(self, examples: Iterable[LocatedExample]) -> None:
        """Predict all examples and write the predictions.

        Raises:
            DataError: an example cannot be read or predicted; the earlier predictions are written first.
        """
        try:
            for where, example in examples:
                self._add((where, example))
        except DataError:
            self.flush()
            raise
        self.flush()

    def add_error(self, problem: str) -> None:
        """Add an input that is not a valid example."""
        self._add(self._error(str(self.num_inputs), problem))

    def flush(self) -> None:
        """Predict the pending examples and write the predictions."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        examples = [item[1] for item in pending if isinstance(item, tuple)]
        try:
            lines = iter(self._predict(examples) if examples else ())
        except DataError:
            self._predict_one_by_one(pending)
            return
        self._write([next(lines) if isinstance(item, tuple) else item for item in pending])

    def _add(self, item: LocatedExample | JsonObject) -> None:
        self._pending.append(item)
        self.num_inputs += 1
        if len(self._pending) >= self._group:
            self.flush()

    def _predict_one_by_one(self, pending: Sequence[LocatedExample | JsonObject]) -> None:
        for item in pending:
            if not isinstance(item, tuple):
                self._write([item])
                continue
            where, example = item
            try:
                line = self._predict([example])[0]
            except DataError as error:
                line = self._error(example.id, f"{where}: {error}")
            self._write([line])

    def _error(self, name: str, problem: str) -> JsonObject:
        if self.stops:
            raise DataError(f"{problem}. {_REMEDY}")
        self.num_errors += 1
        return {"id": name, "error": problem}


STANDARD_INPUT = "-"
_WORD_FORMATS = {".conll": "conll", ".conllu": "conllu"}
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class InputSource:
    """The input that ``input=`` names.

    Attributes:
        path: path of the file, the ``save_to_disk`` folder or the pipe; None for standard input.
        is_stream: whether the input is standard input or a pipe, which can be read only once, as data arrives.
    """

    name: str
    path: Path | None
    is_stream: bool

    def check_distinct_from(self, output: str) -> None:
        """Raise an error if the output file is the input file."""
        place = Path(output).expanduser()
        if self.path is not None and place.exists() and self.path.samefile(place):
            raise ConfigError(f"output={output}: this is the input file; choose another output file")


def find_input(value: str) -> InputSource:
    """Find a plain or compressed file, a ``datasets.save_to_disk`` folder, a pipe, or standard input."""
    if value == STANDARD_INPUT:
        return InputSource("standard input", None, is_stream=True)
    path = Path(value).expanduser()
    file = find_data(path) if path.name else None
    if file is not None:
        return InputSource(str(file), file, is_stream=False)
    if path.exists() and not path.is_dir():
        return InputSource(value, path, is_stream=True)
    problem = describe_splits(path) or "this file does not exist; choose another file, or - for standard input"
    raise DataError(f"input={value}: {problem}")


def input_format(choice: str | None, source: InputSource, reader: Reader, notes: Notes) -> str:
    """Determine the format of the input.

    Args:
        choice: the format that the user set. If None, the file name decides, and for tab-separated values also the
            quotation marks in the file.
        source: the input; standard input and pipes are ``text`` unless ``choice`` is set.
    """
    if choice is not None:
        file_format, setting = choice, f"format={choice}"
    elif source.path is None or source.is_stream:
        return "text"
    else:
        suffix = Path(plain_name(source.path)).suffix.lower()
        by_name = _WORD_FORMATS.get(suffix) or format_by_name(source.path)
        file_format = (reader.json_format if suffix == ".json" else by_name) or ""
        if file_format == "tsv":
            file_format = TableLayout().format_of(source.path, notes)
        setting = f"input={source.name}: the file name does not determine a format"
    if file_format not in reader.formats:
        raise ConfigError(f"{setting}: {reader.kind} reads {', '.join(reader.formats)}; choose one with format=...")
    if source.is_stream and file_format in reader.file_only:
        others = " or ".join(name for name in reader.formats if name not in reader.file_only)
        raise ConfigError(f"format={file_format}: only a file can have this format; for a pipe, set {others}")
    return file_format


def input_file(
    source: InputSource,
    file_format: str,
    columns: Mapping[str, str],
    predictions: PredictionsInOrder,
    notes: Notes,
    *,
    delimiter: str | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> InputFile:
    """Open an input for reading.

    Args:
        predictions: receives invalid inputs, and is flushed whenever reading waits for more data.
    """
    path = None if source.is_stream else source.path
    lines = read_input(source, notes, encoding_errors=encoding_errors, before_waiting=predictions.flush)
    return InputFile(
        name=source.name,
        lines=lines,
        path=path,
        file_format=file_format,
        columns=columns,
        delimiter=delimiter,
        encoding_errors=encoding_errors,
        stops=predictions.stops,
        refuse=predictions.add_error,
        notes=notes,
    )


def read_input(
    source: InputSource,
    notes: Notes,
    *,
    encoding_errors: EncodingErrors = "strict",
    before_waiting: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, str]]:
    """Yield the lines of an input, numbered from 1, without line ends; one line is in memory at a time.

    Args:
        before_waiting: called whenever reading waits for more data.
    """
    if source.path is None and sys.stdin is not None and sys.stdin.isatty():
        print("Type one input per line; press Ctrl-D to finish", file=sys.stderr)
    if source.path is None or source.is_stream:
        return _open_stream(source.path, source.name, encoding_errors, notes, before_waiting)
    return read_lines(source.path, encoding_errors=encoding_errors, notes=notes)


def read_example(text: str, reader: Reader) -> Any:
    """Read the example in ``text=``."""
    try:
        return reader.parse_line(text, "text", "text", Notes())
    except ValueError as problem:
        raise ConfigError(f"text={text[:60]}: {problem}") from None


def _open_stream(
    path: Path | None, name: str, encoding_errors: EncodingErrors, notes: Notes, before_waiting: Callable[[], None]
) -> Iterator[tuple[int, str]]:
    opened: AbstractContextManager[BufferedReader]
    standard_input = getattr(sys.stdin, "buffer", None)  # closed, or replaced by an object of text, as in notebooks
    if path is None and standard_input is None:
        raise DataError(
            "input=-: standard input is closed or is not a stream of bytes; set a file, or pipe the input to the "
            "command (in Python, load(run).predict(texts) takes a list of texts)"
        )
    opened = nullcontext(cast(BufferedReader, standard_input)) if path is None else path.open("rb")
    with opened as stream:
        yield from stream_lines(stream, name, encoding_errors, notes, before_waiting)


def stream_lines(
    stream: BufferedReader,
    name: str,
    encoding_errors: EncodingErrors,
    notes: Notes,
    before_waiting: Callable[[], None],
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a stream, each as soon as its line end arrives."""
    return decode_lines(_complete_lines(stream, name, before_waiting), name, encoding_errors, notes)


def _complete_lines(stream: BufferedReader, name: str, before_waiting: Callable[[], None]) -> Iterator[bytes]:
    begun: list[bytes] = []
    while True:
        before_waiting()
        with naming(name):
            piece = stream.read1(_PIECE_BYTES)
        if piece and b"\n" not in piece:
            begun.append(piece)
            continue
        *lines, rest = b"".join([*begun, piece]).split(b"\n")
        begun = [rest]
        yield from lines
        if not piece:
            yield from filter(None, begun)
            return
