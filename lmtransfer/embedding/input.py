"""The input of ``embed``: texts with the other columns of their rows, some rows at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import pyarrow as pa

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.files import plain_name
from lmtransfer.data.parquet_files import check_text_column, open_parquet, parquet_batches, raw_texts
from lmtransfer.data.text_lines import EncodingErrors, decode
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.prediction.input import InputSource, lines_of
from lmtransfer.tasks.text.tables import BadRows, Column, TableLayout, rows_of_lines

Format = Literal["lines", "tsv", "quoted_tsv", "csv", "jsonl", "parquet"]
_OF_SUFFIX: dict[str, Format] = {
    ".txt": "lines",
    ".text": "lines",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
#: Columns that are looked for if the user names none.
_TEXT_COLUMNS = ("text", "sentence")
#: A window is closed at this many characters, even if it has few rows.
_WINDOW_CHARACTERS = 1 << 23


@dataclass(frozen=True, slots=True)
class Window:
    """Some rows that follow each other.

    Attributes:
        texts: their texts; "" where there is none.
        rows: all their columns.
    """

    texts: list[str]
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class TextRows:
    """An open input.

    Attributes:
        name: its name, for messages.
        schema: the columns of its rows. Those of parquet have their own types; all others are texts.
        windows: its rows; one window is in memory at a time.
    """

    name: str
    schema: pa.Schema
    windows: Iterator[Window]


def format_of(given: str | None, source: InputSource) -> Format:
    """The format of an input.

    Args:
        given: the user's format; None: decide by the file's name; standard input and pipes have ``lines``.
        source: the input.

    Raises:
        ConfigError: the format is unknown, or a pipe cannot have it.
    """
    formats: tuple[Format, ...] = get_args(Format)
    if given is None and (source.path is None or source.arrives):
        return "lines"
    suffix = "" if source.path is None else Path(plain_name(source.path)).suffix.lower()
    found = _OF_SUFFIX.get(suffix) if given is None else next((name for name in formats if name == given), None)
    if found is None:
        why = f"input={source.name}: its file name sets no format" if given is None else f"format={given}"
        raise ConfigError(f"{why}: embed reads {', '.join(formats)}; set format= to one of these")
    if found == "parquet" and source.arrives:
        raise ConfigError("format=parquet: can be read only from a file; a pipe can have any other format")
    return found


@contextmanager
def open_rows(
    source: InputSource,
    file_format: Format,
    notes: Notes,
    *,
    text_column: str | None,
    encoding_errors: EncodingErrors,
    group: int,
) -> Iterator[TextRows]:
    """Open an input; its first rows are read to find the columns.

    Args:
        source: the input.
        file_format: its format.
        notes: counts irregularities.
        text_column: the column with the texts; None: ``text`` or ``sentence``.
        encoding_errors: ``strict`` raises on bytes that are not UTF-8; ``replace`` replaces them and counts.
        group: most rows of a window.

    Raises:
        DataError: the input cannot be read, has no such column, or a row is malformed; with ``file:line``.
        ConfigError: ``text_column`` is given, but the format has no columns.
    """
    if file_format == "parquet":
        assert source.path is not None
        with open_parquet(source.path) as file:
            names = file.schema_arrow.names
            column = text_column or next((name for name in _TEXT_COLUMNS if name in names), _TEXT_COLUMNS[0])
            check_text_column(file, source.path, column, key="text_column")
            batches = parquet_batches(file, source.path)
            windows = _parquet_windows(batches, source.name, column, encoding_errors, notes, group)
            yield TextRows(source.name, file.schema_arrow.remove_metadata(), windows)
        return
    lines = lines_of(source, notes, encoding_errors=encoding_errors)
    if file_format == "lines":
        if text_column is not None:
            raise ConfigError(f"text_column={text_column}: format=lines has no columns; leave it out")
        rows = ((clean(line, f"{source.name}:{number}", notes),) for number, line in lines)
        table = _Table((_TEXT_COLUMNS[0],), 0, rows)
    elif file_format == "jsonl":
        table = _json_table(lines, source.name, text_column, notes)
    else:
        table = _delimited_table(lines, source.name, file_format, text_column, notes)
    yield TextRows(source.name, _text_schema(table.names), _table_windows(table, group))


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of texts.

    Attributes:
        names: names of the columns.
        place: index of the column with the text.
        rows: the rows; None for a missing value.
    """

    names: tuple[str, ...]
    place: int
    rows: Iterable[Sequence[str | None]]


@dataclass(frozen=True, slots=True)
class _RefusedRows(BadRows):
    """Refuses every row that cannot be read: a vector for each row keeps input and output in step."""

    def found(self, kind: str, where: str, problem: str) -> NoReturn:
        """Refuse a row; see ``BadRows.found``."""
        raise DataError(f"{where}: {problem}. Correct or remove the row")


def _delimited_table(
    lines: Iterator[tuple[int, str]],
    name: str,
    file_format: Literal["tsv", "quoted_tsv", "csv"],
    text_column: str | None,
    notes: Notes,
) -> _Table:
    first = next(lines, None)
    if first is None:
        raise DataError(f"{name}: is empty; its first line must name the columns")
    delimiter = "," if file_format == "csv" else "\t"
    names = first[1].split(delimiter) if file_format == "tsv" else next(csv.reader([first[1]], delimiter=delimiter), [])
    place = _text_place(names, text_column, f"{name}:{first[0]}")
    wanted = [Column((column,), "text_column") for column in names]
    rows = rows_of_lines(
        chain([first], lines),
        name,
        wanted,
        layout=TableLayout(file_format),
        bad_rows=_RefusedRows("refuse", notes),
    )

    def cleaned() -> Iterator[list[str | None]]:
        for row in rows:
            yield [None if value is None else clean(value, row.where, notes) for value in row.values]

    return _Table(tuple(names), place, cleaned())


def _text_place(names: Sequence[str], text_column: str | None, where: str) -> int:
    wanted = _TEXT_COLUMNS if text_column is None else (text_column,)
    found = next((name for name in wanted if name in names), None)
    if found is None:
        shown = ", ".join(name[:40] for name in list(names)[:20])
        raise DataError(
            f"{where}: no column {' or '.join(map(repr, wanted))}; the columns are {shown}. Set text_column to one of "
            "these, or format=lines if each line is a text"
        )
    return list(names).index(found)


def _json_table(lines: Iterator[tuple[int, str]], name: str, text_column: str | None, notes: Notes) -> _Table:
    """The fields of the first object are the columns; what is not a text is written as JSON."""
    objects = _objects(lines, name, notes)
    first = next(objects, None)
    if first is None:
        raise DataError(f"{name}: contains no JSON objects")
    names = tuple(first[1])
    place = _text_place(names, text_column, first[0])

    def rows() -> Iterator[list[str | None]]:
        for where, found in chain([first], objects):
            text = found.get(names[place])
            if names[place] not in found or not (text is None or isinstance(text, str)):
                what = "is missing" if names[place] not in found else f"is a {type(text).__name__}, not a text"
                raise DataError(f"{where}: the field {names[place]!r} {what}; correct the row, or set text_column")
            if found.keys() - set(names):
                notes.add("rows with fields that the first row does not have, which are left out", where)
            yield [_as_text(found.get(column), where, notes) for column in names]

    return _Table(names, place, rows())


def _objects(lines: Iterator[tuple[int, str]], name: str, notes: Notes) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in lines:
        where = f"{name}:{number}"
        if not line.strip():
            notes.add("blank lines, skipped", where)
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}); the format jsonl has one object a line") from None
        if not isinstance(found, dict):
            raise DataError(f"{where}: found {type(found).__name__}, but one JSON object a line is expected")
        yield where, found


def _as_text(value: Any, where: str, notes: Notes) -> str | None:
    if value is None:
        return None
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), where, notes)


def _text_schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, pa.large_string()) for name in names])


def _table_windows(table: _Table, group: int) -> Iterator[Window]:
    schema = _text_schema(table.names)
    rows: list[Sequence[str | None]] = []
    size = 0

    def window() -> Window:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, pa.large_string()) for column in columns]
        return Window([row[table.place] or "" for row in rows], pa.Table.from_arrays(arrays, schema=schema))

    for row in table.rows:
        rows.append(row)
        size += sum(len(value) for value in row if value is not None)
        if len(rows) >= group or size >= _WINDOW_CHARACTERS:
            yield window()
            rows, size = [], 0
    if rows:
        yield window()


def _parquet_windows(
    batches: Iterator[tuple[int, pa.RecordBatch]],
    name: str,
    column: str,
    encoding_errors: EncodingErrors,
    notes: Notes,
    group: int,
) -> Iterator[Window]:
    texts: list[str] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for first, batch in batches:
        for row, raw in enumerate(raw_texts(batch.column(column)), start=first):
            where = f"{name}:row {row}"
            texts.append(clean("" if raw is None else decode(raw, where, encoding_errors, notes), where, notes))
            size += len(texts[-1])
        waiting.append(batch)
        if len(texts) >= group or size >= _WINDOW_CHARACTERS:
            yield Window(texts, pa.Table.from_batches(waiting))
            texts, waiting, size = [], [], 0
    if waiting:
        yield Window(texts, pa.Table.from_batches(waiting))
