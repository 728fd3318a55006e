"""User input for a task: a line, or a file of lines, rows, sentences or questions, read without gold answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import EncodingErrors
from lmtransfer.data.tables import TABLE_FORMATS, BadRows, ColumnSpec, IncomingRows, TableLayout, open_table
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode

#: An example and its source, ``file:line``.
LocatedExample = tuple[str, Any]

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
    refuse: Callable[[str], None]
    notes: Notes

    @property
    def table(self) -> Path | IncomingRows:
        """The input in the form that ``open_table`` accepts."""
        return IncomingRows(self.name, self.lines) if self.path is None else self.path

    @property
    def bad_rows(self) -> BadRows:
        """A handler that treats unreadable rows like other invalid examples."""
        return _RefusedRows("refuse", self.notes, refuse=self.refuse)

    def layout(self, task_layout: TableLayout | None = None) -> TableLayout:
        """Return the layout of the input, if it is a table.

        Args:
            task_layout: the layout of the task's own files, whose columns and delimiter are the defaults.
        """
        task_layout = task_layout or TableLayout()
        file_format = next(name for name in TABLE_FORMATS if name == self.file_format)
        delimiter = self.delimiter or task_layout.delimiter
        return replace(task_layout, file_format=file_format, encoding_errors=self.encoding_errors, delimiter=delimiter)

    def each_line(self, example_of: Callable[[str, str, str], Any]) -> Iterator[LocatedExample]:
        """Yield one example per line.

        Args:
            example_of: builds the example from the line, its ``file:line`` and its name; raises ValueError or DataError
                with the reason if it cannot.
        """
        for number, (line_number, line) in enumerate(self.lines):
            where = f"{self.name}:{line_number}"
            yield from self._example(partial(example_of, line, where, str(number)), where)

    def each_row(self, columns: Sequence[str], example_of: Callable[[JsonNode, str], Any]) -> Iterator[LocatedExample]:
        """Yield one example per row of JSON or parquet.

        Args:
            example_of: builds the example from the row and its name, which is its ``id`` or its index; raises DataError
                with the reason if it cannot.
        """
        specs = [ColumnSpec((name,), "input", required=False) for name in ("id", *columns)]
        for record in open_table(self.table, specs, layout=self.layout(), bad_rows=self.bad_rows).records:
            row = JsonNode(record.values, None, record.where)
            yield from self._example(partial(_build_from_row, row, str(record.number), example_of), record.where)

    def _example(self, build: Callable[[], Any], where: str) -> Iterator[LocatedExample]:
        try:
            example = build()
        except ValueError as problem:
            self.refuse(f"{where}: {problem}")
        except DataError as error:
            self.refuse(str(error))
        else:
            yield where, example


def _build_from_row(row: JsonNode, default_name: str, example_of: Callable[[JsonNode, str], Any]) -> Any:
    node = row.get("id")
    return example_of(row, default_name if node is None or node.value is None else node.name())


@dataclass(frozen=True, slots=True)
class _RefusedRows(BadRows):
    """A handler that treats unreadable rows like other invalid examples."""

    refuse: Callable[[str], None] = field(kw_only=True)

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

    def read(self, source: InputFile) -> Iterator[LocatedExample]:
        """Yield the examples of an input, each as soon as it has been read."""
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

    def parse_file(self, source: InputFile) -> Iterator[LocatedExample]:
        """Yield the examples of a file in a format other than ``text``."""
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
