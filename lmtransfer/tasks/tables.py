"""Rows of labelled data from files: tab-separated without quoting, comma-separated, and JSON lines.

GLUE's files are tab-separated *without* quoting: a bare quotation mark is text, and a reader that takes it for the
start of a quoted field merges rows silently. So a tab-separated file here has exactly one row a line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.data.files import read_lines
from lmtransfer.errors import DataError

TableFormat = Literal["tsv", "csv", "jsonl"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        where: ``file:line``, for messages.
        values: the asked columns, in the order they were asked for.
    """

    where: str
    values: tuple[str, ...]


def read_rows(
    path: Path, wanted: Sequence[str], *, file_format: TableFormat, columns: Sequence[str] | None
) -> Iterator[Row]:
    """The wanted columns of each row of a file.

    Args:
        path: the file, plain or compressed.
        wanted: names of the columns to give.
        file_format: how rows are written.
        columns: names of all columns in order for a file without a header line; None: the first line is the header
            (in JSON lines, every object names its own).

    Raises:
        DataError: a missing column, a row of another width, or a broken JSON object, with ``file:line``.
    """
    if file_format == "jsonl":
        yield from _json_rows(path, wanted)
        return
    records = _tsv_records(path) if file_format == "tsv" else _csv_records(path)
    names = list(columns) if columns is not None else None
    places: list[int] = [] if names is None else _places(names, wanted, f"{path}")
    for line, fields in records:
        where = f"{path}:{line}"
        if names is None:
            names = fields
            places = _places(names, wanted, where)
            continue
        if len(fields) != len(names):
            raise DataError(
                f"{where}: {len(fields)} columns where {len(names)} are expected ({', '.join(names)}); "
                f"mend the line{'' if columns is None else ', or task.columns'}"
            )
        yield Row(where, tuple(fields[place] for place in places))


def _tsv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in read_lines(path):
        yield number, line.split("\t")


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    start = 1
    try:
        for fields in reader:
            yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{start}: not comma-separated values ({error}); mend the quotation marks") from None


def _json_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not a JSON object ({error})") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: holds {type(record).__name__} where one JSON object a line is expected")
        _places(list(record), wanted, where)
        yield Row(where, tuple(str(record[name]) for name in wanted))


def _places(names: list[str], wanted: Sequence[str], where: str) -> list[int]:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"{where}: no column {', '.join(repr(name) for name in missing)}; there are {', '.join(names)}. Set "
            "task.text_column, task.text_pair_column or task.label_column to one of these, or task.columns for a "
            "file without a header line"
        )
    return [names.index(name) for name in wanted]
