"""The input of ``embed``: texts with the other columns of their rows, read one window of rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.parquet_files import Columns, check_strings, open_columns, texts_of
from lmtransfer.data.tables import (
    TABLE_FORMATS,
    TEXT_COLUMNS,
    BadRows,
    ColumnSpec,
    IncomingRows,
    TableLayout,
    check_columns,
    open_table,
)
from lmtransfer.data.text_lines import EncodingErrors
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.prediction_input import InputSource, read_input

#: A window is closed at this many characters, even if it has few rows.
_WINDOW_CHARACTERS = 1 << 23


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows.

    Attributes:
        texts: the text of each row; "" if it is missing.
        rows: all columns of the rows.
    """

    texts: list[str]
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class TextRows:
    """An open input.

    Attributes:
        name: the input's name in messages.
        schema: the columns. Parquet columns keep their types; all others are texts.
        windows: the rows, with one window in memory at a time.
    """

    name: str
    schema: pa.Schema
    windows: Iterator[Window]


class EmbedFormats:
    """The formats that ``embed`` reads; see ``Reader``."""

    kind = "embed"
    formats: tuple[str, ...] = ("text", *TABLE_FORMATS)
    file_only: tuple[str, ...] = ("parquet",)
    json_format: str | None = "jsonl"


def open_rows(
    source: InputSource,
    file_format: str,
    notes: Notes,
    *,
    text_column: str | None,
    delimiter: str | None = None,
    encoding_errors: EncodingErrors,
    group: int,
) -> TextRows:
    """Open an input and read its first rows to find the columns.

    Args:
        file_format: the input's format (see ``input_format``).
        text_column: the column with the texts; ``text`` or ``sentence`` if None.
        delimiter: the character between a table's columns; for the default, see ``TableLayout``.
        encoding_errors: ``strict`` raises on bytes that are not UTF-8; ``replace`` replaces them and counts them.
        group: maximum number of rows in a window.

    Raises:
        DataError: the input cannot be read or has no such column, or a row is malformed (the message has
            ``file:line``).
        ConfigError: ``text_column`` is set, but the format has no columns.
    """
    text_columns = ColumnSpec(
        TEXT_COLUMNS if text_column is None else (text_column,),
        "text_column",
        advice="format=text if each line is a text",
        is_text=True,
    )
    if file_format == "parquet":
        assert source.path is not None
        columns = open_columns(source.path)
        names = columns.schema.names
        rows = (values for _, values, _ in columns.records(names, "replace", Notes()))
        check_columns(names, [text_columns], str(source.path), rows)
        column = next(name for name in text_columns.names if name in names)
        check_strings(columns, column, key="text_column")
        windows = _parquet_windows(columns, column, encoding_errors, notes, group)
        return TextRows(source.name, columns.schema.remove_metadata(), windows)
    lines = read_input(source, notes, encoding_errors=encoding_errors)
    if file_format == "text":
        for key, value in (("text_column", text_column), ("delimiter", delimiter)):
            if value is not None:
                raise ConfigError(f"{key}={value}: an input with format=text has no columns; remove {key}=")
        texts = ((clean(line, f"{source.name}:{number}", notes),) for number, line in lines)
        table = _Table((TEXT_COLUMNS[0],), 0, texts)
    else:
        layout = TableLayout(
            next(name for name in TABLE_FORMATS if name == file_format),
            encoding_errors=encoding_errors,
            delimiter=delimiter,
        )
        table = _text_table(source, lines, text_columns, layout, notes)
    return TextRows(source.name, _text_schema(table.names), _table_windows(table, group))


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of texts.

    Attributes:
        names: names of the columns.
        text_column: index of the column with the text.
        rows: the rows; None for a missing value.
    """

    names: tuple[str, ...]
    text_column: int
    rows: Iterable[Sequence[str | None]]


def _text_table(
    source: InputSource, lines: Iterator[tuple[int, str]], text_columns: ColumnSpec, layout: TableLayout, notes: Notes
) -> _Table:
    """Read a table whose columns come from the header line or the first object; values other than texts become JSON."""
    bad_rows, name = BadRows("refuse", notes, "or remove it: each row gets a vector"), source.name
    rows_or_path = IncomingRows(name, lines) if source.path is None or source.is_stream else source.path
    table = open_table(rows_or_path, [text_columns], layout=layout, bad_rows=bad_rows)
    first = next(table.records, None)
    names = tuple(first.values) if table.names is None and first is not None else table.names or ()
    if not names:
        raise DataError(f"{name}: the input is empty; it must begin with a line of column names or a JSON object")
    if len(set(names)) < len(names):
        raise DataError(f"{name}: several columns have the same name ({', '.join(names)}); rename them")
    if first is not None:
        first.text(text_columns)
    column = next(column for column in text_columns.names if column in names)

    def rows() -> Iterator[list[str | None]]:
        for record in [] if first is None else chain([first], table.records):
            record.text(text_columns)
            if record.values.keys() - set(names):
                notes.add("rows with fields that the first row does not have; these fields are left out", record.where)
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
        return Window([row[table.text_column] or "" for row in rows], pa.Table.from_arrays(arrays, schema=schema))

    for row in table.rows:
        rows.append(row)
        size += sum(len(value) for value in row if value is not None)
        if len(rows) >= group or size >= _WINDOW_CHARACTERS:
            yield window()
            rows, size = [], 0
    if rows:
        yield window()


def _parquet_windows(
    columns: Columns, column: str, encoding_errors: EncodingErrors, notes: Notes, group: int
) -> Iterator[Window]:
    texts: list[str] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for file, first, batch in columns.batches():
        for row, text in enumerate(texts_of(batch.column(column), file, first, encoding_errors, notes), start=first):
            texts.append(clean(text or "", f"{file}:row {row}", notes))
            size += len(texts[-1])
        waiting.append(batch)
        if len(texts) >= group or size >= _WINDOW_CHARACTERS:
            yield Window(texts, pa.Table.from_batches(waiting))
            texts, waiting, size = [], [], 0
    if waiting:
        yield Window(texts, pa.Table.from_batches(waiting))
