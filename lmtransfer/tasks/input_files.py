"""User input for a task: a line, or a file of lines, rows, sentences or questions, read without gold answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import EncodingErrors
from lmtransfer.data.table_rows import Row, TableColumns
from lmtransfer.data.tables import TABLE_FORMATS, BadRows, ColumnSpec, IncomingRows, OpenTable, TableLayout, open_table
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode


@dataclass(frozen=True, slots=True)
class InputRow:
    """A row of an input and the example in it.

    Attributes:
        where: ``file:line`` of the row.
        name: the id of the example, which may be the index of the row.
        example: the example; None if the row has no text.
        row: the whole row.
    """

    where: str
    name: str
    example: Any
    row: Row


@dataclass(frozen=True, slots=True)
class OpenInput:
    """An open input: its columns, and its rows, one in memory at a time."""

    columns: TableColumns
    rows: Iterator[InputRow]


class Refuse(Protocol):
    """Handles an invalid example, of which ``row`` is the whole row, if it could be read."""

    def __call__(self, problem: str, row: Row | None = None) -> None: ...  # noqa: D102


#: Separates two texts in one line.
SEPARATOR = "[SEP]"


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file with user input, or input from a pipe.

    Attributes:
        lines: each line's number, from 1, and its text without the line end; only one line is in memory at a time.
        path: the file; None if the input can be read only once, as from a pipe.
        columns: the column names that the user set, by setting: ``text_column``, ``text_pair_column``, ``id_column``.
        delimiter: the character between the columns of a table; None for the default of ``TableLayout``.
        stops: whether the first invalid line stops the command.
        refuse: called with a message for each invalid example; the message has ``file:line``.
    """

    name: str
    lines: Iterator[tuple[int, str]]
    path: Path | None
    file_format: str
    columns: Mapping[str, str]
    delimiter: str | None
    encoding_errors: EncodingErrors
    stops: bool
    refuse: Refuse
    notes: Notes

    def open_table(self, columns: Sequence[ColumnSpec], task_layout: TableLayout | None = None) -> OpenTable:
        """Open the input as a table with whole rows; unreadable rows are treated like other invalid examples.

        Args:
            task_layout: the layout of the task's own files, whose columns and delimiter are the defaults.
        """
        task_layout = task_layout or TableLayout()
        layout = replace(
            task_layout,
            file_format=next(name for name in TABLE_FORMATS if name == self.file_format),
            encoding_errors=self.encoding_errors,
            delimiter=self.delimiter or task_layout.delimiter,
        )
        source = IncomingRows(self.name, self.lines) if self.path is None else self.path
        bad_rows = _RefusedRows("refuse", self.notes, refuse=self.refuse)
        return open_table(source, columns, layout=layout, bad_rows=bad_rows, whole_rows=True)

    def each_line(self, example_of: Callable[[str, str, str], Any]) -> OpenInput:
        """Open an input with one example per line.

        Args:
            example_of: builds the example from the line, its ``file:line`` and its name; raises ValueError or DataError
                with the reason if it cannot.
        """

        def rows() -> Iterator[InputRow]:
            for number, (line_number, line) in enumerate(self.lines):
                where, name = f"{self.name}:{line_number}", str(number)

                def build(line: str = line, where: str = where, name: str = name) -> tuple[str, Any]:
                    return name, example_of(line, where, name) if line.strip() else None

                yield from self._row(build, where, {"id": name, "text": line})

        return OpenInput(TableColumns(("id", "text")), rows())

    def each_row(self, columns: Sequence[str], example_of: Callable[[JsonNode, str], Any]) -> OpenInput:
        """Open an input with one example per row of JSON or parquet.

        Args:
            columns: the columns that ``example_of`` reads; the example is None if one of them is present but empty.
            example_of: builds the example from the row and its name, which is its ``id`` or its index; raises DataError
                with the reason if it cannot.
        """
        specs = [ColumnSpec((name,), "input", required=False) for name in ("id", *columns)]
        table = self.open_table(specs)

        def rows() -> Iterator[InputRow]:
            for record in table.records:
                assert record.row is not None
                is_empty = any(_is_empty(record.values[column]) for column in columns if column in record.values)
                node = JsonNode(record.values, None, record.where)
                build = partial(_build_from_row, node, str(record.number), None if is_empty else example_of)
                yield from self._row(build, record.where, record.row)

        return OpenInput(table.columns, rows())

    def _row(self, build: Callable[[], tuple[str, Any]], where: str, row: Row) -> Iterator[InputRow]:
        try:
            name, example = build()
        except ValueError as problem:
            self.refuse(f"{where}: {problem}", row)
        except DataError as error:
            self.refuse(str(error), row)
        else:
            yield InputRow(where, name, example, row)


def _build_from_row(
    row: JsonNode, default_name: str, example_of: Callable[[JsonNode, str], Any] | None
) -> tuple[str, Any]:
    node = row.get("id")
    name = default_name if node is None or node.value is None else node.name()
    return name, None if example_of is None else example_of(row, name)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, list) and not value)


@dataclass(frozen=True, slots=True)
class _RefusedRows(BadRows):
    """A handler that treats unreadable rows like other invalid examples."""

    refuse: Refuse = field(kw_only=True)

    @override
    def report(self, kind: str, where: str, problem: str) -> None:
        self.refuse(f"{where}: {problem}")


class Reader(ABC):
    """Builds examples from user input.

    Attributes:
        formats: supported file formats; every reader supports ``text``, with one example per line.
        file_only: formats that can be read from a file but not from a pipe.
        json_format: format of a file whose name ends in ``.json``; None if the name does not decide.
    """

    formats: ClassVar[tuple[str, ...]]
    file_only: ClassVar[tuple[str, ...]] = ()
    has_columns: ClassVar[bool] = False

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.json_format: str | None = None

    def read(self, source: InputFile) -> OpenInput:
        """Open an input, whose rows are yielded as soon as they have been read."""
        column_settings = [*source.columns, *(["delimiter"] if source.delimiter else [])]
        if column_settings and not (self.has_columns and source.file_format != "text"):
            raise ConfigError(
                f"{column_settings[0]} does not apply to format={source.file_format}, which has no columns; leave out "
                f"{column_settings[0]}"
            )
        if source.file_format == "text":
            return source.each_line(lambda line, where, name: self.parse_line(line, where, name, source.notes))
        return self.parse_file(source)

    def parse_line(self, line: str, where: str, name: str, notes: Notes) -> Any:
        """Build an example from a line.

        Raises:
            ValueError: the line is not a valid example.
        """
        if not line.strip():
            raise ValueError("the line is empty")
        return self.parse_nonblank_line(line, where, name, notes)

    @abstractmethod
    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> Any:
        """Build an example from a line that is not blank; see ``parse_line``."""

    def parse_file(self, source: InputFile) -> OpenInput:
        """Open a file in a format other than ``text``."""
        raise AssertionError(f"format {source.file_format} was accepted, but there is no reader for it")


def two_texts(line: str, kind: str) -> tuple[str, str]:
    """Split a line into two texts, at ``[SEP]`` with white space around it, or at a tab.

    Raises:
        ValueError: the line does not contain exactly two texts.
    """
    has_separator = SEPARATOR in line
    parts = [part.strip() for part in line.split(SEPARATOR)] if has_separator else line.split("\t")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        count = sum(bool(part.strip()) for part in parts)
        raise ValueError(f"expected {kind} with {SEPARATOR} or a tab between them; found {count} texts")
    return parts[0], parts[1]
