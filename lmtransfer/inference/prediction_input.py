"""Reads the input of ``predict`` as examples: a text, a file, or lines from standard input as they arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import EncodingErrors, decode_lines, describe_splits, find_data, plain_name, read_lines
from lmtransfer.data.table_rows import Row
from lmtransfer.data.tables import TABLE_FORMATS, BadRows, TableLayout, format_by_name, open_table
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.system.machine import naming
from lmtransfer.tasks.input_files import InputFile, InputRow, OpenInput, Reader

OnError = Literal["stop", "skip"]

#: An output line: the JSON object for an example.
JsonObject = dict[str, Any]

_REMEDY = "Fix it, or set on_error=skip to write an error in place of its prediction and continue"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for a row of the input.

    Attributes:
        line: the ``id`` and the prediction, or the ``id`` and an ``error``.
        row: the whole row; None if it could not be read.
    """

    where: str
    line: JsonObject
    row: Row | None


#: Writes the predictions for consecutive rows.
Write = Callable[[Sequence[Prediction]], None]


class PredictionsInOrder:
    """Predicts examples in groups and writes the predictions in the order of the rows.

    A row without a text gets an empty prediction. A row that is not a valid example stops the command after all earlier
    predictions have been written. With ``on_error="skip"``, an object with the ``error`` is written in place of the
    prediction.

    Args:
        empty: the prediction for a row without a text.
        group: maximum number of rows predicted together.
    """

    def __init__(self, *, empty: Mapping[str, None], group: int, on_error: OnError, notes: Notes) -> None:
        self._empty, self._notes, self._group, self._on_error = empty, notes, group, on_error
        self._predict: Callable[[Sequence[Any]], Sequence[JsonObject]] = lambda _: ()
        self._write: Write = lambda _: None
        self._pending: list[InputRow | Prediction] = []
        self.num_inputs = self.num_errors = 0

    @property
    def stops(self) -> bool:
        """Whether an example that cannot be predicted stops the command."""
        return self._on_error == "stop"

    def predict_all(
        self, rows: Iterable[InputRow], predict: Callable[[Sequence[Any]], Sequence[JsonObject]], write: Write
    ) -> None:
        """Predict all rows and write the predictions.

        Args:
            predict: predicts a group of examples.

        Raises:
            DataError: an example cannot be read or predicted; the earlier predictions are written first.
        """
        self._predict, self._write = predict, write
        try:
            for row in rows:
                if row.example is None:
                    self._notes.add("inputs without a text, whose prediction is empty", row.where)
                    self._add(Prediction(row.where, {"id": row.name, **self._empty}, row.row))
                else:
                    self._add(row)
        except DataError:
            self.flush()
            raise
        self.flush()

    def add_error(self, problem: str, row: Row | None = None) -> None:
        """Add an input that is not a valid example."""
        self._add(self._error(str(self.num_inputs), problem, row))

    def flush(self) -> None:
        """Predict the pending examples and write the predictions."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        examples = [item.example for item in pending if isinstance(item, InputRow)]
        try:
            lines = iter(self._predict(examples) if examples else ())
        except DataError:
            self._predict_one_by_one(pending)
            return
        self._write(
            [Prediction(item.where, next(lines), item.row) if isinstance(item, InputRow) else item for item in pending]
        )

    def _add(self, item: InputRow | Prediction) -> None:
        self._pending.append(item)
        self.num_inputs += 1
        if len(self._pending) >= self._group:
            self.flush()

    def _predict_one_by_one(self, pending: Sequence[InputRow | Prediction]) -> None:
        for item in pending:
            if isinstance(item, InputRow):
                try:
                    prediction = Prediction(item.where, self._predict([item.example])[0], item.row)
                except DataError as error:
                    prediction = self._error(item.name, f"{item.where}: {error}", item.row)
                self._write([prediction])
            else:
                self._write([item])

    def _error(self, name: str, problem: str, row: Row | None) -> Prediction:
        if self.stops:
            raise DataError(f"{problem}. {_REMEDY}")
        self.num_errors += 1
        return Prediction("", {"id": name, "error": problem}, row)


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
        """Raise an error if the output file, or the file in which it is written first, is the input file."""
        place = Path(output).expanduser()
        for written in (place, partial_path(place)):
            if written.exists() and self._is_in(written):
                raise ConfigError(f"output={output}: {written} is the input file; choose another output file")

    def _is_in(self, path: Path) -> bool:
        if self.path is not None:
            return self.path.samefile(path)
        try:
            return os.path.samestat(os.fstat(sys.stdin.fileno()), path.stat())
        except (AttributeError, OSError):  # standard input is closed, or replaced by an object without a file
            return False


def partial_path(path: Path) -> Path:
    """Return the file in which the output is written before it is complete."""
    return path.with_name(f"{path.name}.partial")


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
    lines = read_input(
        source,
        notes,
        encoding_errors=encoding_errors,
        before_waiting=predictions.flush,
        keep_returns=file_format in TABLE_FORMATS,
    )
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


def open_file(file: InputFile, reader: Reader, *, all_names: bool) -> OpenInput:
    """Open an input with a reader.

    Args:
        all_names: whether to read a file of JSON objects in advance, to find the names of all their fields.
    """
    opened = reader.read(file)
    if not all_names or opened.columns.names is not None:
        return opened
    if file.path is None:
        raise ConfigError(
            "output: the objects of a pipe may have any fields, so a table with fixed columns cannot be written; write "
            "the output as .jsonl, or save the input to a file first"
        )
    layout = TableLayout("jsonl", encoding_errors=file.encoding_errors)
    objects = open_table(file.path, [], layout=layout, bad_rows=BadRows("skip", Notes())).records
    names = dict.fromkeys(name for record in objects for name in record.values)
    return replace(opened, columns=replace(opened.columns, names=tuple(names)))


def read_input(
    source: InputSource,
    notes: Notes,
    *,
    encoding_errors: EncodingErrors = "strict",
    before_waiting: Callable[[], None] = lambda: None,
    keep_returns: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield the lines of an input, numbered from 1, without line ends; one line is in memory at a time.

    Args:
        before_waiting: called whenever reading waits for more data.
        keep_returns: whether to keep carriage returns before line feeds, which may be part of a quoted field.
    """
    if source.path is None and sys.stdin is not None and sys.stdin.isatty():
        print("Type one input per line; press Ctrl-D to finish", file=sys.stderr)
    if source.path is None or source.is_stream:
        return _open_stream(source, encoding_errors, notes, before_waiting, keep_returns)
    return read_lines(source.path, encoding_errors=encoding_errors, notes=notes, keep_returns=keep_returns)


def read_example(text: str, reader: Reader) -> Any:
    """Read the example in ``text=``."""
    try:
        return reader.parse_line(text, "text", "text", Notes())
    except ValueError as problem:
        raise ConfigError(f"text={text[:60]}: {problem}") from None


def _open_stream(
    source: InputSource,
    encoding_errors: EncodingErrors,
    notes: Notes,
    before_waiting: Callable[[], None],
    keep_returns: bool,
) -> Iterator[tuple[int, str]]:
    path = source.path
    opened: AbstractContextManager[BufferedReader]
    standard_input = getattr(sys.stdin, "buffer", None)  # closed, or replaced by an object of text, as in notebooks
    if path is None and standard_input is None:
        raise DataError(
            "input=-: standard input is closed or is not a stream of bytes; set a file, or pipe the input to the "
            "command (in Python, load(run).predict(texts) takes a list of texts)"
        )
    opened = nullcontext(cast(BufferedReader, standard_input)) if path is None else path.open("rb")
    with opened as stream:
        yield from stream_lines(stream, source.name, encoding_errors, notes, before_waiting, keep_returns=keep_returns)


def stream_lines(
    stream: BufferedReader,
    name: str,
    encoding_errors: EncodingErrors,
    notes: Notes,
    before_waiting: Callable[[], None],
    *,
    keep_returns: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a stream, each as soon as its line end arrives."""
    lines = _complete_lines(stream, name, before_waiting)
    return decode_lines(lines, name, encoding_errors, notes, keep_returns=keep_returns)


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
