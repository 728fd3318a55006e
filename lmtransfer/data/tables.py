"""Table rows from delimited text, JSON (one object per line, or an array of objects), parquet and arrow.

Tasks, corpora, ``predict`` and ``embed`` all open tables with ``open_table``. The file name decides the format
(``FORMATS``), and the content decides the rest: the column separator, whether quotation marks enclose fields, and JSON
lines or an array. Notes record these decisions, and messages name ``file:line``.

GLUE's files are tab-separated *without* quoting: a quotation mark is text, and there is exactly one row per line. A
reader that takes the mark for the start of a quoted field silently merges rows. pandas writes quoted fields to files
with the same names, so ``detect_quoting`` distinguishes the two.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal, get_args

from lmtransfer.config.types import TableFormat, TextFormat
from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.files import BYTE_ORDER_MARKS, EncodingErrors, Meter, plain_name, read_lines
from lmtransfer.data.parquet_files import open_columns
from lmtransfer.data.remote_files import SourceFile
from lmtransfer.data.table_rows import Row, TableColumns
from lmtransfer.errors import ConfigError, DataError

#: The format of a file by its suffix, which a compression suffix may follow.
FORMATS: Final[dict[str, TextFormat]] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".markdown": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "parquet",
}
TABLE_FORMATS: Final[tuple[TableFormat, ...]] = get_args(TableFormat)
#: Columns that are searched for texts if the user names none.
TEXT_COLUMNS: Final = ("text", "sentence")
MAX_FIELD_CHARACTERS = 1 << 24
#: Number of characters of a tab-separated file that are searched for quoted fields.
_SAMPLE_CHARACTERS = 1 << 22
#: Number of rows that are searched for the column with the longest texts.
_SAMPLE_ROWS = 50
_SEPARATORS: Final = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}
#: The first line by which Excel names the separator.
_SEPARATOR_LINE = re.compile(r'"?sep=([^\w\s"]|\t)"?[,;|\t]*', re.IGNORECASE)
_QUOTED_FIELD = re.compile(r'"(?:[^"]|"")*"(?=\t|\r?\n|\Z)')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_SPACE = re.compile(r"[ \t\r\n]*")
#: Texts for a missing number, in lower case.
_NO_NUMBER = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none"})
#: How pandas writes one object per line.
AS_LINES = "df.to_json(path, orient='records', lines=True)"
#: What may come next in an array besides an item, by what came last.
_NEXT: Final = {"start": "[", "[": "]", ",": "", "item": ",]", "]": ""}


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column to read.

    Attributes:
        names: possible names of the column, of which the first one in the file is used.
        setting: the configuration key that names the column, for messages; "" if the name is fixed.
        may_be_list: whether JSON and parquet may hold a list or an object, which is returned as JSON.
        per_label: whether a file may have all ``names``, one column per label; the value is then a JSON object with all
            of them.
        advice: what a user can do if no column has any of the names, other than set ``setting``.
    """

    names: tuple[str, ...]
    setting: str
    required: bool = True
    may_be_list: bool = False
    per_label: bool = False
    advice: str = "set task.columns for a file without a header line"
    is_text: bool = False

    def __str__(self) -> str:
        return " or ".join(repr(name) for name in self.names)

    def missing_message(self, names: Sequence[str], rows: Iterable[Mapping[str, Any]] = ()) -> str:
        """Return the error message for a table without this column, given its column names and first rows."""
        present = ", ".join(name[:40] for name in list(names)[:20])
        if not self.setting:
            return f"no column named {self}; the columns are {present}. {self.advice}"
        likely = longest_texts(rows) if self.is_text and len(names) > 1 else None
        hint = "" if likely is None else f" ({likely[:40]} has the longest texts)"
        return (
            f"no column named {self}; the columns are {present}. Set {self.setting} to one of these{hint}, or "
            f"{self.advice}"
        )


def longest_texts(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the column with the most words, or else characters, in the first rows; None if no column has texts."""
    words, characters = Counter[str](), Counter[str]()
    for row in islice(rows, _SAMPLE_ROWS):
        for name, value in row.items():
            if isinstance(value, str):
                words[name] += len(value.split())
                characters[name] += len(value)
    return max(words, key=lambda name: (words[name], characters[name]), default=None)


def delimiter_of(value: str | None, key: str) -> str | None:
    """Return the delimiter that the setting ``key`` names; None if it is null."""
    character = {"tab": "\t", r"\t": "\t"}.get(value or "", value)
    if character is not None and (len(character) != 1 or character in '"\r\n'):
        raise ConfigError(
            f"{key}={value} must be a single character such as ';' or '|', tab, or null (to detect the separator from "
            "the first line)"
        )
    return character


def format_by_name(path: SourceFile) -> TextFormat | None:
    """Return the format of a file or of a ``save_to_disk`` folder by its name; None if the name does not decide."""
    return "parquet" if path.is_dir() else FORMATS.get(Path(plain_name(path)).suffix.lower())


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of table files.

    Attributes:
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv``, ``jsonl`` (one object per line, or
            an array of objects) or ``parquet`` (also arrow); None to decide by the file name, with ``tsv`` if the name
            does not decide, and ``quoted_tsv`` if quotation marks enclose its fields.
        columns: names of all columns, for files without a header line. A first line that names the requested columns is
            still read as a header.
        optional_columns: how many of the last ``columns`` a row may lack.
        delimiter: the character between columns; None for a tab or a comma, depending on the format, or the separator
            with which the first line names the requested columns.
    """

    file_format: TableFormat | None = None
    columns: Sequence[str] | None = None
    optional_columns: int = 0
    bad_rows: BadRowsPolicy = "refuse"
    encoding_errors: EncodingErrors = "strict"
    delimiter: str | None = None

    def format_of(self, path: SourceFile, notes: Notes | None = None) -> TableFormat:
        """Return a file's format by its name or, if columns are separated by tabs, by its content."""
        if self.file_format is not None:
            return self.file_format
        name_format = format_by_name(path)
        table_format: TableFormat = "tsv" if name_format is None or name_format == "text" else name_format
        if table_format != "tsv" or self.delimiter not in (None, "\t"):
            return table_format
        sample, size = [], 0
        for _, line in read_lines(path, encoding_errors="replace"):
            sample.append(line)
            size += len(line)
            if size > _SAMPLE_CHARACTERS:
                break
        quoted, doubt = detect_quoting("\n".join(sample))
        if notes is not None and quoted:
            notes.add("file with quoted fields, read as quoted_tsv (tsv reads quotation marks as text)", f"{path}:1")
        elif notes is not None and doubt:
            notes.add("texts between quotation marks, which were kept (quoted_tsv removes them)", f"{path}:1", doubt)
        return "quoted_tsv" if quoted else "tsv"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One row of a table, with all its columns.

    Attributes:
        number: index of the row in the file, counting skipped rows.
        where: ``file:line`` or ``file:row``, for messages.
        values: the values by column: strings in delimited text, JSON values otherwise.
        names_of: columns whose label ids were replaced by the names in the file's own metadata.
        row: the row as the file has it; that of a parquet file only if ``open_table`` was asked for whole rows.
    """

    number: int
    where: str
    values: Mapping[str, Any]
    names_of: frozenset[str] = frozenset()
    row: Row | None = None

    def name_of(self, column: ColumnSpec) -> str | None:
        """Return the first of the column's names that this row has; None if it has none."""
        return next((name for name in column.names if name in self.values), None)

    def missing_message(self, column: ColumnSpec) -> str:
        """Return the error message for a row without this column, with advice if the row seems to be a whole table."""
        problem = column.missing_message(list(self.values), [self.values])
        return f"{problem}. {self._table_advice()}".rstrip(". ")

    def text(self, column: ColumnSpec) -> str | None:
        """Return the text in a column; None if there is no value."""
        name = self.name_of(column)
        if name is None:
            raise DataError(f"{self.where}: {self.missing_message(column)}")
        value = self.values[name]
        if value is not None and not isinstance(value, str):
            problem = (
                f"{name!r} is of type {type(value).__name__}, not text; correct the row, or set {column.setting} to "
                "another column"
            )
            raise DataError(f"{self.where}: {problem}. {self._table_advice()}".rstrip(". "))
        return value

    def texts(self, columns: Sequence[ColumnSpec], notes: Notes) -> tuple[str | None, ...]:
        """Return the values of columns as clean texts, None where there is no value.

        Raises:
            ValueError: a required column is missing, or a value is neither a text nor a number.
            DataError: the same, if the row seems to be a whole table; the message has advice.
        """
        try:
            values = [_text_of(column, self) for column in columns]
        except ValueError as problem:
            if advice := self._table_advice():
                raise DataError(f"{self.where}: {problem}. {advice}") from None
            raise
        return tuple(None if value is None else clean(value, self.where, notes) for value in values)

    def _table_advice(self) -> str:
        """Explain how to write a table given as a single JSON object as rows; empty if the object looks like a row."""
        if self.number > 0:
            return ""
        for name, value in self.values.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                return f"The rows seem to be in {name!r}: write that list to a separate file."
        if self.values and all(isinstance(value, (list, dict)) for value in self.values.values()):
            return f"The object looks like a table by columns: write one object per line ({AS_LINES})."
        return ""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """An open table: its columns, and its rows, one in memory at a time."""

    columns: TableColumns
    records: Iterator[TableRecord]


@dataclass(frozen=True, slots=True)
class TableRow:
    """The requested columns of one row: each a text or None, and whether it is a label name from the file."""

    number: int
    where: str
    values: tuple[str | None, ...]
    is_label_name: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class BadRows:
    """What to do with rows that cannot be used: ``refuse`` raises at the first, ``skip`` counts them in ``notes``."""

    policy: BadRowsPolicy
    notes: Notes
    advice: str = "or set task.bad_rows=skip to leave such rows out and count them"

    def report(self, kind: str, where: str, problem: str) -> None:
        """Report a row that cannot be used; ``kind`` is in the plural."""
        if self.policy == "refuse":
            raise DataError(f"{where}: {problem}. Correct the row, {self.advice}")
        self.notes.add(f"{kind}, left out", where)


def detect_quoting(sample: str) -> tuple[bool, int]:
    """Return whether quotation marks enclose the fields of tab-separated text, as pandas, R and Excel write them.

    They do if quotation marks occur only around whole fields or doubled inside them, and if there is proof: a field
    that contains doubled marks, a tab or a line end, or quoted fields throughout the header line. Without proof, also
    return the number of fields that could be quoted.
    """
    sample = sample.rstrip("\r\n")
    header = sample.partition("\n")[0].split("\t")
    proof = all(len(field) > 1 and field[0] == field[-1] == '"' for field in header)
    place, num_quoted = 0, 0
    while (mark := sample.find('"', place)) >= 0:
        field = _QUOTED_FIELD.match(sample, mark)
        if field is None or (mark > 0 and sample[mark - 1] not in "\t\n"):
            return False, 0
        num_quoted, place = num_quoted + 1, field.end()
        broken = sample[sample.rfind("\n", 0, mark) + 1 : mark + field[0].find("\n")] if "\n" in field[0] else None
        if broken is not None and broken.count("\t") >= len(header) - 1:
            return False, 0  # the first line is a whole row
        proof = proof or any(character in field[0][1:-1] for character in '"\t\n')
    return proof, 0 if proof else num_quoted


@dataclass(frozen=True, slots=True)
class IncomingRows:
    """The numbered lines of a table that can be read only once, as from a pipe, and its name for messages."""

    name: str
    lines: Iterator[tuple[int, str]]


def open_table(
    source: SourceFile | IncomingRows,
    columns: Sequence[ColumnSpec],
    *,
    layout: TableLayout,
    bad_rows: BadRows,
    meter: Meter | None = None,
    whole_rows: bool = False,
) -> OpenTable:
    """Open a table of any format; only a header line is read immediately.

    ``columns`` are the columns to be used. ``bad_rows`` handles rows with the wrong number of columns and broken JSON
    objects; its notes also record the decisions that depend on the file's content. A ``DataError`` names ``file:line``.

    With ``whole_rows``, every record has its ``row``, and rows whose cells are all empty are not skipped.
    """
    notes, errors = bad_rows.notes, layout.encoding_errors
    marks = notes.counts.get(BYTE_ORDER_MARKS, 0)
    if isinstance(source, IncomingRows):
        origin, lines, file_format = source.name, source.lines, layout.file_format or "tsv"
    else:
        origin, file_format = str(source), layout.format_of(source, notes)
        if file_format == "parquet":
            parquet = open_columns(source, meter)
            names = parquet.schema.names
            check_columns(names, columns, origin, (record[1] for record in parquet.records(names, "replace", Notes())))
            chosen = [name for column in columns for name in column.names]
            rows = parquet.records(chosen, errors, notes, whole_rows=whole_rows)
            return OpenTable(
                TableColumns(tuple(names), parquet.schema),
                (TableRecord(number, *row) for number, row in enumerate(rows)),
            )
        lines = read_lines(source, encoding_errors=errors, notes=notes, meter=meter, keep_returns=True)
    if file_format == "jsonl":
        return OpenTable(TableColumns(None), _json_records(lines, origin, bad_rows))
    first = next(lines, None)
    usual = "," if file_format == "csv" else "\t"
    if first is None:
        return OpenTable(TableColumns(tuple(layout.columns or ()), delimiter=usual), iter(()))
    has_mark = notes.counts.get(BYTE_ORDER_MARKS, 0) > marks
    separator = None if layout.columns is not None else _SEPARATOR_LINE.fullmatch(first[1].rstrip("\r"))
    if separator is not None:
        line = first[1].rstrip("\r")[:10]
        notes.add(f"first line that only names the separator ({line!r}), left out", f"{origin}:{first[0]}")
        first = next(lines, None)
        if first is None:
            return OpenTable(TableColumns((), delimiter=separator[1]), iter(()))
    delimiter = layout.delimiter or (
        separator[1] if separator else _delimiter(first[1].rstrip("\r"), usual, columns, layout)
    )
    if delimiter != usual and layout.delimiter is None and separator is None:
        kind = f"file whose columns are separated by {_SEPARATORS[delimiter]}, not by {_SEPARATORS[usual]}"
        notes.add(kind, f"{origin}:{first[0]}")
    every = chain([first], lines)
    if is_quoted := file_format in ("csv", "quoted_tsv") or delimiter != "\t":
        records = _quoted_records(every, origin, delimiter, first_line=first[0])
    else:
        records = ((number, line.rstrip("\r").split("\t")) for number, line in every)
    form = TableColumns((), delimiter=delimiter, is_quoted=is_quoted, has_mark=has_mark)
    return _delimited_table(records, origin, columns, layout, bad_rows, form, whole_rows=whole_rows)


def read_rows(
    path: Path, columns: Sequence[ColumnSpec], *, layout: TableLayout, bad_rows: BadRows
) -> Iterator[TableRow]:
    """Yield the requested columns of each row of a file as texts; see ``open_table``."""
    yield from rows_of(open_table(path, columns, layout=layout, bad_rows=bad_rows).records, columns, bad_rows)


def rows_of(records: Iterator[TableRecord], columns: Sequence[ColumnSpec], bad_rows: BadRows) -> Iterator[TableRow]:
    """Yield the requested columns of each record as clean texts; ``bad_rows`` handles rows that lack one."""
    for record in records:
        try:
            texts = record.texts(columns, bad_rows.notes)
        except ValueError as problem:
            bad_rows.report("invalid rows", record.where, str(problem))
            continue
        is_label_name = tuple(any(name in record.names_of for name in column.names) for column in columns)
        yield TableRow(record.number, record.where, texts, is_label_name)


def parse_number(text: str | None) -> float:
    """Return the number that a cell holds, NaN if it is missing; raises ValueError for other texts."""
    if text is None or text.strip().lower() in _NO_NUMBER:
        return math.nan
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise ValueError(f"{text[:40]!r} is not a finite number")
    return number


def _delimiter(line: str, usual: str, columns: Sequence[ColumnSpec], layout: TableLayout) -> str:
    """Return the separator that splits the first line into the requested columns or the given number of columns."""
    parts = {mark: _split(line, mark) for mark in (usual, *_SEPARATORS)}
    for mark, fields in parts.items():
        has_number = layout.columns is not None and (
            len(layout.columns) - layout.optional_columns <= len(fields) <= len(layout.columns)
        )
        if has_number or _names_columns(fields, columns):
            return mark
    if len(parts[usual]) > 1:
        return usual
    return max(parts, key=lambda mark: len(parts[mark]))  # so that a message can list the columns


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def _delimited_table(
    records: Iterator[tuple[int, list[str]]],
    origin: str,
    columns: Sequence[ColumnSpec],
    layout: TableLayout,
    bad_rows: BadRows,
    form: TableColumns,
    *,
    whole_rows: bool,
) -> OpenTable:
    """Open delimited text; ``form`` has everything about its columns but the names."""
    first_line, first = next(records)
    is_header = layout.columns is None or _names_columns(first, columns)
    names = first if is_header or layout.columns is None else list(layout.columns)
    check_columns(
        names, columns, f"{origin}:{first_line}", (dict(zip(names, fields, strict=False)) for _, fields in records)
    )
    optional = 0 if is_header else layout.optional_columns
    once = [name if names.count(name) == 1 else "" for name in names]

    def read() -> Iterator[TableRecord]:
        number = -1
        for line, fields in records if is_header else chain([(first_line, first)], records):
            where = f"{origin}:{line}"
            if len(names) > 1 and not any(fields) and not (whole_rows and len(fields) == len(names)):
                bad_rows.notes.add("blank lines", where)
                continue
            fields = fields or [""]
            number += 1
            if not len(names) - optional <= len(fields) <= len(names):
                at_least = "" if not optional else f"{len(names) - optional} to "
                problem = f"{len(fields)} columns, but {at_least}{len(names)} are expected ({', '.join(names)})"
                if not form.is_quoted and any('"' in field for field in fields):
                    problem += "; quotation marks are read as text: set task.file_format=quoted_tsv for quoted fields"
                bad_rows.report("rows with a different number of columns", where, problem)
                continue
            values = {name: field.replace("\r\n", "\n") for name, field in zip(once, fields, strict=False)}
            yield TableRecord(number, where, values, row=fields)

    return OpenTable(replace(form, names=tuple(names)), read())


def _names_columns(fields: Sequence[str], columns: Sequence[ColumnSpec]) -> bool:
    return all(any(name in fields for name in column.names) for column in columns if column.required)


def check_columns(
    names: Sequence[str], columns: Sequence[ColumnSpec], where: str, rows: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Check that a table has each requested column once; ``rows`` are its first rows, for the message."""
    for column in columns:
        name = next((name for name in column.names if name in names), None)
        if name is None and column.required:
            raise DataError(f"{where}: {column.missing_message(names, rows)}")
        if name is not None and list(names).count(name) > 1:
            instead = f", or set {column.setting} to another column" if column.setting else ""
            raise DataError(f"{where}: {name!r} is the name of several columns; rename them{instead}")
        present = [name for name in column.names if name in names]
        if column.per_label and 1 < len(present) < len(column.names):
            absent = ", ".join(name for name in column.names if name not in names)
            raise DataError(
                f"{where}: {column.setting} names the columns {', '.join(present)} and also {absent}, which the file "
                "does not have; name a single column, or only label columns that the file has"
            )


def _quoted_records(
    lines: Iterator[tuple[int, str]], origin: str, delimiter: str, *, first_line: int
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_FIELD_CHARACTERS)
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter, strict=True)
    start = first_line
    try:
        for fields in reader:
            yield start, fields
            start = reader.line_num + first_line
    except csv.Error as error:
        if "new-line character" in str(error):
            raise DataError(
                f"{origin}:{start}: a field outside quotation marks contains a carriage return; write the file again "
                "with a line feed at the end of each line"
            ) from None
        kind = "comma-separated" if delimiter == "," else "quoted"
        raise DataError(
            f"{origin}:{start}: not {kind} values ({error}); correct the quotation marks"
            + (", or set task.file_format=tsv to read them as text" if delimiter == "\t" else "")
        ) from None


def _json_records(lines: Iterator[tuple[int, str]], origin: str, bad_rows: BadRows) -> Iterator[TableRecord]:
    for number, (where, value) in enumerate(json_values(lines, origin, bad_rows.notes)):
        if isinstance(value, dict):
            yield TableRecord(number, where, value, row=value)
            continue
        problem = f"expected a JSON object, found a value of type {type(value).__name__}"
        if isinstance(value, ValueError):
            problem = str(value)
        bad_rows.report("invalid rows", where, problem)


def json_values(lines: Iterator[tuple[int, str]], origin: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    """Parse JSON with one value per line, or one array over any number of lines, with one item in memory at a time.

    Yields ``file:line`` of a value (in an array also the item number), and the value; a ValueError in place of a line
    that cannot be parsed.
    """
    is_first = True
    for number, line in lines:
        where = f"{origin}:{number}"
        if not line.strip():
            notes.add("blank lines", where)
            continue
        if is_first and line.lstrip().startswith("["):
            for item, (start, value) in enumerate(_array_items(chain([(number, line)], lines), origin), start=1):
                yield f"{origin}:{start}, item {item}", value
            return
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError) as error:
            parsed = ValueError(f"not a JSON object ({error})")
            if is_first and line.strip() == "{":
                raise DataError(
                    f"{where}: a single JSON object over several lines is not a table; write an array of objects, or "
                    f"one object per line ({AS_LINES})"
                ) from None
        yield where, parsed
        is_first = False


def _array_items(lines: Iterator[tuple[int, str]], origin: str) -> Iterator[tuple[int, Any]]:
    decoder, depth, last = json.JSONDecoder(), 0, "start"
    pending: list[str] = []  # lines of an incomplete last item
    start: int | None = None  # number of the line where the item starts
    number = 0
    for number, line in lines:
        lowest = depth
        for token in _TOKEN.finditer(line):
            depth += (token[0] in "[{") - (token[0] in "]}")
            lowest = min(lowest, depth)
        pending.append(line)
        if lowest > 1:
            continue
        text, place = "\n".join(pending), 0
        while (place := _after_space(text, place)) < len(text):
            if text[place] in _NEXT[last]:
                last = text[place]
                place += 1
                continue
            if last not in ("[", ","):
                raise _no_array(origin, number, f"{text[place : place + 40]!r} is not expected here")
            try:
                value, place = decoder.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                if depth <= 1:
                    raise _no_array(origin, number, str(error)) from None
                start = number if start is None else start
                break
            yield (number if start is None else start), value
            last, start = "item", None
        pending = [text[place:]] if place < len(text) else []
    if last != "]":
        raise _no_array(origin, number, "it does not end, so the file is cut short")


def _after_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


def _no_array(origin: str, number: int, problem: str) -> DataError:
    return DataError(f"{origin}:{number}: not a JSON array ({problem}); write the file again")


BadRowsPolicy = Literal["refuse", "skip"]


def _text_of(column: ColumnSpec, record: TableRecord) -> str | None:
    """Return the value of a column as text; None if there is no such column or no value. Raises ValueError."""
    values = record.values
    if column.per_label and len(present := [name for name in column.names if name in values]) > 1:
        if len(present) < len(column.names):
            raise ValueError(f"of the columns in {column.setting}, the row has only {', '.join(present)}")
        return json.dumps({name: values[name] for name in column.names}, ensure_ascii=False)
    name = record.name_of(column)
    if name is None and column.required:
        raise ValueError(column.missing_message(list(values), [values]))
    value = None if name is None else values[name]
    if isinstance(value, (list, dict)) and column.may_be_list:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, dict, bytes)):
        raise ValueError(f"{name!r} is a {type(value).__name__}, but text or a number is expected")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name!r} is {value}, which is neither text nor a number")
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
