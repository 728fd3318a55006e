"""Input of users for a task: a line, or a file of lines, rows, sentences or questions, read without gold answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode

#: The source of an example, ``file:line``, and the example.
Given = tuple[str, Any]

#: Separates two texts in one line.
SEPARATOR = "[SEP]"


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file with the input of a user, or input from a pipe.

    Attributes:
        name: name of the input in messages.
        lines: its lines with their numbers, from 1, without line ends; one is in memory at a time.
        path: the file; None if the input can be read only once, as from a pipe.
        file_format: format of the input, one of the ``Reader.formats``.
        columns: names given by the user: ``text_column``, ``text_pair_column``, ``id_column``.
        stops: whether the first line that is not a valid example stops the command.
        refuse: called for each invalid example with one message, which has ``file:line``.
        notes: counts unusual input.
    """

    name: str
    lines: Iterator[tuple[int, str]]
    path: Path | None
    file_format: str
    columns: Mapping[str, str]
    stops: bool
    refuse: Callable[[str], None]
    notes: Notes

    def each_line(self, example_of: Callable[[str, str, str], Any], *, pass_blank: bool = False) -> Iterator[Given]:
        """Yield one example per line.

        Args:
            example_of: makes the example from the line, its ``file:line`` and its name; raises ValueError or DataError
                with the reason if it cannot.
            pass_blank: skip blank lines and count them.
        """
        number = -1
        for line_number, line in self.lines:
            where = f"{self.name}:{line_number}"
            if pass_blank and not line.strip():
                self.notes.add("blank lines, skipped", where)
                continue
            number += 1
            try:
                example = example_of(line, where, str(number))
            except ValueError as problem:
                self.refuse(f"{where}: {problem}")
            except DataError as error:
                self.refuse(str(error))
            else:
                yield where, example


class Reader(ABC):
    """Makes examples from the input of users.

    Args:
        kind: short name of the task's kind, for messages.

    Attributes:
        formats: supported file formats; every reader supports ``lines``, with one example per line.
        file_only: formats that can be read from a file but not from a pipe.
        json_format: format of a file whose name ends in ``.json``; None if the name does not decide.
        has_columns: whether users may name columns.
    """

    formats: ClassVar[tuple[str, ...]]
    file_only: ClassVar[tuple[str, ...]] = ()
    has_columns: ClassVar[bool] = False

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.json_format: str | None = None

    def read(self, source: InputFile) -> Iterator[Given]:
        """Yield the examples of an input, each as soon as it is read.

        Raises:
            DataError: an example is invalid and errors stop the command, or a table lacks the columns.
            ConfigError: the user names columns, but the input has no columns.
        """
        if source.columns and not (self.has_columns and source.file_format != "lines"):
            raise ConfigError(f"{next(iter(source.columns))}: format={source.file_format} has no columns")
        if source.file_format == "lines":
            return source.each_line(lambda line, where, name: self.of_line(line, where, name, source.notes))
        return self.of_file(source)

    def of_line(self, line: str, where: str, name: str, notes: Notes) -> Any:
        """Make the example of one line.

        Args:
            line: the line without its end.
            where: ``file:line``, for notes.
            name: name of the example.
            notes: counts unusual input.

        Raises:
            ValueError: the line is not a valid example.
        """
        if not line.strip():
            raise ValueError("the line is empty")
        return self.of_filled_line(line, where, name, notes)

    @abstractmethod
    def of_filled_line(self, line: str, where: str, name: str, notes: Notes) -> Any:
        """See ``of_line``; here the line is not blank."""

    @abstractmethod
    def of_file(self, source: InputFile) -> Iterator[Given]:
        """Yield the examples of a file in another format than ``lines``; see ``read``."""


def two_texts(line: str, what: str) -> tuple[str, str]:
    """Split a line into two texts, at ``[SEP]`` with white space around it, or at a tab.

    Args:
        line: the line.
        what: name of the texts, for the message.

    Raises:
        ValueError: the line does not have exactly two texts.
    """
    marked = SEPARATOR in line
    parts = [part.strip() for part in line.split(SEPARATOR)] if marked else line.split("\t")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        found = sum(bool(part.strip()) for part in parts)
        raise ValueError(f"expected {what} with {SEPARATOR} or a tab between them; found {found} texts")
    return parts[0], parts[1]


def json_object(line: str, where: str, otherwise: str) -> tuple[JsonNode, str]:
    """Parse a line of JSON, and return the object with the name that its ``id`` gives it.

    Args:
        line: the line.
        where: ``file:line``, for messages.
        otherwise: name if there is no ``id``.

    Raises:
        DataError: the line is not JSON, or not an object.
    """
    try:
        row = JsonNode(json.loads(line), None, where)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object ({error})") from None
    given = row.maybe("id")
    return row, otherwise if given is None else given.name()
