"""The input of ``embed``: texts with the other columns of their rows, some rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.files import plain_name
from lmtransfer.data.parquet_files import check_text_column, open_parquet, parquet_batches, raw_texts
from lmtransfer.data.tables import FORMATS, BadRows, Column, TableFormat, TableLayout, table_of_lines, whole_table
from lmtransfer.data.text_lines import EncodingErrors, decode
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.prediction_input import InputSource, lines_of

Format = Literal["lines"] | TableFormat
_FORMATS: tuple[Format, ...] = ("lines", *get_args(TableFormat))
_OF_SUFFIX: dict[str, Format] = {**FORMATS, ".txt": "lines", ".text": "lines"}
del _OF_SUFFIX[".arrow"]  # the columns of parquet keep their types
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
    if given is None and (source.path is None or source.arrives):
        return "lines"
    suffix = "" if source.path is None else Path(plain_name(source.path)).suffix.lower()
    found = _OF_SUFFIX.get(suffix) if given is None else next((name for name in _FORMATS if name == given), None)
    if found is None:
        why = f"input={source.name}: its file name sets no format" if given is None else f"format={given}"
        raise ConfigError(f"{why}: embed reads {', '.join(_FORMATS)}; set format= to one of these")
    if given is None and found == "tsv" and source.path is not None:
        return TableLayout().format_of(source.path)  # its fields may be quoted
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
    else:
        table = _text_table(lines, source.name, file_format, text_column, notes)
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


def _text_table(
    lines: Iterator[tuple[int, str]], name: str, file_format: TableFormat, text_column: str | None, notes: Notes
) -> _Table:
    """The columns are those of the header line, or the fields of the first object; other values are written as JSON."""
    wanted = Column(
        _TEXT_COLUMNS if text_column is None else (text_column,),
        "text_column",
        otherwise="format=lines if each line is a text",
    )
    layout, bad_rows = TableLayout(file_format), BadRows("refuse", notes, "or remove it: each row gets a vector")
    table = table_of_lines(lines, name, [wanted], layout=layout, bad_rows=bad_rows)
    first = next(table.records, None)
    names = tuple(first.values) if table.names is None and first is not None else table.names or ()
    if not names:
        raise DataError(f"{name}: is empty; there must be a line with the names of the columns, or a JSON object")
    if len(set(names)) < len(names):
        raise DataError(f"{name}: several columns have one name ({', '.join(names)}); rename them")
    column = next((column for column in wanted.names if column in names), None)
    if column is None:
        assert first is not None
        raise DataError(f"{first.where}: {wanted.missing(names)}. {whole_table(first.values)}".rstrip(". ") + ".")

    def rows() -> Iterator[list[str | None]]:
        for record in [] if first is None else chain([first], table.records):
            text = record.values.get(column)
            if column not in record.values or not (text is None or isinstance(text, str)):
                what = "is missing" if column not in record.values else f"is a {type(text).__name__}, not a text"
                raise DataError(f"{record.where}: the field {column!r} {what}; correct the row, or set text_column")
            if record.values.keys() - set(names):
                notes.add("rows with fields that the first row does not have, which are left out", record.where)
            yield [_as_text(record.values.get(name), record.where, notes) for name in names]

    return _Table(names, names.index(column), rows())


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
