"""Read rows of labelled data from files: tab-separated without quoting, comma-separated, and JSON lines.

GLUE's files are tab-separated *without* quoting: a quotation mark is text. A reader that takes it for the start of a
quoted field merges rows silently. So a tab-separated file here has exactly one row per line.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import plain_name
from lmtransfer.data.text_lines import EncodingErrors, read_lines
from lmtransfer.errors import DataError

TableFormat = Literal["tsv", "quoted_tsv", "csv", "jsonl"]
BadRowsPolicy = Literal["refuse", "skip"]

FORMATS: dict[str, TableFormat] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
MAX_FIELD_CHARACTERS = 1 << 24


@dataclass(frozen=True, slots=True)
class Column:
    """A wanted column.

    Attributes:
        names: possible names of the column; the first one that a file has is used.
        setting: the configuration key that names it, for messages.
        required: whether a file must have it.
        may_be_list: whether JSON lines may hold a list, which is returned as JSON.
    """

    names: tuple[str, ...]
    setting: str
    required: bool = True
    may_be_list: bool = False

    def __str__(self) -> str:
        return " or ".join(repr(name) for name in self.names)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The format of files.

    Attributes:
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv`` or ``jsonl`` (one object per line);
            None: by the name of the file, ``tsv`` if the name does not decide.
        columns: names of all columns, for files without a header line. A first line that names the wanted columns is
            still read as a header.
        optional_columns: how many of the last ``columns`` a row may lack.
        bad_rows: what to do with rows that cannot be read.
        encoding_errors: ``strict`` refuses bytes that are not UTF-8; ``replace`` puts U+FFFD there and counts them.
    """

    file_format: TableFormat | None = None
    columns: Sequence[str] | None = None
    optional_columns: int = 0
    bad_rows: BadRowsPolicy = "refuse"
    encoding_errors: EncodingErrors = "strict"

    def format_of(self, path: Path) -> TableFormat:
        """The format of this file."""
        return self.file_format or FORMATS.get(Path(plain_name(path)).suffix.lower(), "tsv")


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        number: number of the row in the file, from 0; rows that were left out count.
        where: ``file:line``, for messages.
        values: values of the wanted columns, in that order; None if there is no such column or no value.
    """

    number: int
    where: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class BadRows:
    """Handles rows that cannot be read.

    Attributes:
        policy: ``refuse`` raises at the first; ``skip`` leaves them out and counts them.
        notes: counts them.
    """

    policy: BadRowsPolicy
    notes: Notes

    def found(self, kind: str, where: str, problem: str) -> None:
        """Report a row that cannot be used.

        Args:
            kind: the problem of such rows, in the plural.
            where: ``file:line``.
            problem: the problem of this row.

        Raises:
            DataError: the policy is ``refuse``.
        """
        if self.policy == "refuse":
            raise DataError(
                f"{where}: {problem}. Correct the row, or set task.bad_rows=skip to leave such rows out and count them"
            )
        self.notes.add(f"{kind}, left out", where)


def read_rows(path: Path, wanted: Sequence[Column], *, layout: TableLayout, bad_rows: BadRows) -> Iterator[Row]:
    """Read the wanted columns of each row of a file, with one row in memory at a time.

    Args:
        path: the file, plain or compressed.
        wanted: the columns to return.
        layout: format of the file.
        bad_rows: handles rows with another number of columns and broken JSON objects. Its notes count blank lines
            between rows.

    Raises:
        DataError: a column is missing, or ``bad_rows`` refuses a row; the message has ``file:line``.
    """
    lines = read_lines(path, encoding_errors=layout.encoding_errors, notes=bad_rows.notes)
    layout = replace(layout, file_format=layout.format_of(path))
    yield from rows_of_lines(lines, str(path), wanted, layout=layout, bad_rows=bad_rows)


def rows_of_lines(
    lines: Iterator[tuple[int, str]], origin: str, wanted: Sequence[Column], *, layout: TableLayout, bad_rows: BadRows
) -> Iterator[Row]:
    """Read the wanted columns of each row of some lines; no line is read before it is needed.

    Args:
        lines: numbers and lines, as from ``read_lines``.
        origin: name of the lines in messages.
        wanted: the columns to return.
        layout: format of the lines; without a ``file_format``, tab-separated.
        bad_rows: see ``read_rows``.

    Raises:
        DataError: see ``read_rows``.
    """
    if layout.file_format == "jsonl":
        yield from _json_rows(lines, origin, wanted, bad_rows)
    elif layout.file_format in ("csv", "quoted_tsv"):
        records = _quoted_records(lines, origin, delimiter="," if layout.file_format == "csv" else "\t")
        yield from _delimited_rows(records, origin, wanted, layout, bad_rows, quoted=True)
    else:
        split = ((number, line.split("\t")) for number, line in lines)
        yield from _delimited_rows(split, origin, wanted, layout, bad_rows, quoted=False)


def _delimited_rows(
    records: Iterator[tuple[int, list[str]]],
    origin: str,
    wanted: Sequence[Column],
    layout: TableLayout,
    bad_rows: BadRows,
    *,
    quoted: bool,
) -> Iterator[Row]:
    names: list[str] | None = None
    places: list[int | None] = []
    optional, number = 0, -1
    for line, fields in records:
        where = f"{origin}:{line}"
        if names is None:
            is_header = layout.columns is None or _names_columns(fields, wanted)
            names = fields if is_header or layout.columns is None else list(layout.columns)
            places = _places(names, wanted, where)
            optional = 0 if is_header else layout.optional_columns
            if is_header:
                continue
        if len(names) > 1 and not any(fields):
            bad_rows.notes.add("blank lines", where)
            continue
        number += 1
        if not len(names) - optional <= len(fields) <= len(names):
            at_least = "" if not optional else f"{len(names) - optional} to "
            problem = f"{len(fields)} columns, but {at_least}{len(names)} are expected ({', '.join(names)})"
            if not quoted and any('"' in field for field in fields):
                problem += "; quotation marks are read as text: set task.file_format=quoted_tsv for quoted fields"
            bad_rows.found("rows with another number of columns", where, problem)
            continue
        yield Row(number, where, tuple(None if p is None or p >= len(fields) else fields[p] for p in places))


def _names_columns(fields: Sequence[str], wanted: Sequence[Column]) -> bool:
    """Whether a line is a header that names the wanted columns."""
    return all(any(name in fields for name in column.names) for column in wanted if column.required)


def _quoted_records(
    lines: Iterator[tuple[int, str]], origin: str, *, delimiter: Literal[",", "\t"]
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter, strict=True)
    start = 1
    try:
        for fields in reader:
            yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        kind = "comma-separated" if delimiter == "," else "tab-separated, quoted"
        raise DataError(f"{origin}:{start}: not {kind} values ({error}); correct the quotation marks") from None


def _json_rows(
    lines: Iterator[tuple[int, str]], origin: str, wanted: Sequence[Column], bad_rows: BadRows
) -> Iterator[Row]:
    number = -1
    for line, text in lines:
        where = f"{origin}:{line}"
        if not text.strip():
            bad_rows.notes.add("blank lines", where)
            continue
        number += 1
        try:
            values = _json_values(text, wanted)
        except ValueError as problem:
            bad_rows.found("rows that are no proper JSON objects", where, str(problem))
            continue
        yield Row(number, where, values)


def _json_values(text: str, wanted: Sequence[Column]) -> tuple[str | None, ...]:
    """Return the wanted values of one line.

    Raises:
        ValueError: the line is not an object, lacks a column, or has a list, an object or a number that is not
            finite in place of a text.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON object ({error})") from None
    if not isinstance(record, dict):
        raise ValueError(f"found {type(record).__name__}, but one JSON object per line is expected")
    found: list[str | None] = []
    for column in wanted:
        name = next((name for name in column.names if name in record), None)
        if name is None and column.required:
            raise ValueError(_no_column(column, list(record)))
        value = None if name is None else record[name]
        if isinstance(value, list) and column.may_be_list:
            value = json.dumps(value)
        if isinstance(value, (list, dict)):
            raise ValueError(f"{name!r} is a {type(value).__name__}, but a text or a number is expected")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name!r} is {value}, which is neither a text nor a number")
        if isinstance(value, bool):
            value = str(value).lower()
        found.append(None if value is None else str(value))
    return tuple(found)


def _places(names: Sequence[str], wanted: Sequence[Column], where: str) -> list[int | None]:
    """Return the index of each wanted column; None for an optional column that is missing."""
    places: list[int | None] = []
    for column in wanted:
        name = next((name for name in column.names if name in names), None)
        if name is None and column.required:
            raise DataError(f"{where}: {_no_column(column, names)}")
        if name is not None and list(names).count(name) > 1:
            raise DataError(
                f"{where}: {name!r} is the name of several columns; rename them, or set {column.setting} to another "
                "column"
            )
        places.append(None if name is None else list(names).index(name))
    return places


def _no_column(column: Column, names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in list(names)[:20])
    return (
        f"no column {column}; the columns are {shown}. Set {column.setting} to one of these, or set task.columns for a "
        "file without a header line"
    )
