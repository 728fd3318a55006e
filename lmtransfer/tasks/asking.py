"""What users ask a task: a line, or a file of lines, rows, sentences or questions, as examples without gold answers."""

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

#: Where an example comes from, ``file:line``, and the example.
Given = tuple[str, Any]

#: Stands between two texts of one line.
SEPARATOR = "[SEP]"


@dataclass(frozen=True, slots=True)
class Asked:
    """A file of what is to be answered, or what arrives through a pipe.

    Attributes:
        name: what it is called in messages.
        numbered: its lines with their numbers, from 1, without line ends; one is in memory at a time.
        path: the file; None where it is read once, as it comes.
        file_format: how it is written, one of the ``Reader.formats``.
        columns: names given by the user: ``text_column``, ``text_pair_column``, ``id_column``.
        stops: whether what is no example ends everything.
        refuse: takes what is no example, said in one message with ``file:line``.
        notes: where odd things are counted.
    """

    name: str
    numbered: Iterator[tuple[int, str]]
    path: Path | None
    file_format: str
    columns: Mapping[str, str]
    stops: bool
    refuse: Callable[[str], None]
    notes: Notes

    def each_line(self, example_of: Callable[[str, str, str], Any], *, pass_blank: bool = False) -> Iterator[Given]:
        """One example a line.

        Args:
            example_of: makes it of the line, its place and its name, or says by a ValueError or DataError why not.
            pass_blank: count blank lines instead.
        """
        number = -1
        for line_number, line in self.numbered:
            where = f"{self.name}:{line_number}"
            if pass_blank and not line.strip():
                self.notes.add("blank lines, passed over", where)
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
    """Makes examples of what users ask.

    Args:
        kind: what answers, in a word, for messages.

    Attributes:
        formats: how files may be written; all know ``lines``, an example a line.
        file_only: those of them that are read from a file, not from a pipe.
        json_format: that of a file whose name ends in ``.json``; None where that says nothing.
        has_columns: whether users may name columns.
    """

    formats: ClassVar[tuple[str, ...]]
    file_only: ClassVar[tuple[str, ...]] = ()
    has_columns: ClassVar[bool] = False

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.json_format: str | None = None

    def read(self, asked: Asked) -> Iterator[Given]:
        """The examples of an input, each as soon as it is read.

        Raises:
            DataError: what is no example, where errors stop; a table without the columns.
            ConfigError: columns are named that there cannot be.
        """
        if asked.columns and not (self.has_columns and asked.file_format != "lines"):
            raise ConfigError(f"{next(iter(asked.columns))}: there are no columns in format={asked.file_format}")
        if asked.file_format == "lines":
            return asked.each_line(lambda line, where, name: self.of_line(line, where, name, asked.notes))
        return self.of_file(asked)

    def of_line(self, line: str, where: str, name: str, notes: Notes) -> Any:
        """The example of one line.

        Args:
            line: without its end.
            where: its place, for notes.
            name: of the example.
            notes: where odd things are counted.

        Raises:
            ValueError: it is none.
        """
        if not line.strip():
            raise ValueError("the line is empty")
        return self.of_filled_line(line, where, name, notes)

    @abstractmethod
    def of_filled_line(self, line: str, where: str, name: str, notes: Notes) -> Any:
        """See ``of_line``; the line is not blank."""

    @abstractmethod
    def of_file(self, asked: Asked) -> Iterator[Given]:
        """The examples of a file in another format than ``lines``; see ``read``."""


def two_texts(line: str, what: str) -> tuple[str, str]:
    """The two texts of a line: with ``[SEP]`` between them and white space around it, or with a tab.

    Args:
        line: as given.
        what: what the texts are, for the message.

    Raises:
        ValueError: there are not two of them.
    """
    marked = SEPARATOR in line
    parts = [part.strip() for part in line.split(SEPARATOR)] if marked else line.split("\t")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        found = sum(bool(part.strip()) for part in parts)
        raise ValueError(f"{what} are expected with {SEPARATOR} or a tab between them; there are {found} texts")
    return parts[0], parts[1]


def json_object(line: str, where: str, otherwise: str) -> tuple[JsonNode, str]:
    """A line of JSON, and the name that its ``id`` gives it.

    Args:
        line: the line.
        where: its place, for messages.
        otherwise: its name where it has no ``id``.

    Raises:
        DataError: it is no JSON, or no object.
    """
    try:
        row = JsonNode(json.loads(line), None, where)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object ({error})") from None
    given = row.maybe("id")
    return row, otherwise if given is None else given.name()
