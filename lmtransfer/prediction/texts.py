"""Single texts and pairs that a user wants answered: from a line, or from the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lmtransfer.data.documents import clean
from lmtransfer.errors import ConfigError
from lmtransfer.prediction.lines import InputLines
from lmtransfer.prediction.reading import InputFormat, Reading
from lmtransfer.prediction.stream import Given
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.regression import TextRegression
from lmtransfer.tasks.text.tables import BadRows, Column, TableFormat, TableLayout, rows_of_lines
from lmtransfer.tasks.text.text_example import TextExample
from lmtransfer.tasks.text.text_files import TextColumns
from lmtransfer.zero_shot.fill_mask import MASK

SEPARATOR = "[SEP]"


def text_of_line(text: str, name: str, task: Task | None) -> TextExample:
    """The text, or the two texts, of one line.

    Args:
        text: of the line, cleaned.
        name: of the example.
        task: the run's task; None for fill-mask.

    Raises:
        ValueError: it is none.
    """
    if reads_pairs(task):
        return TextExample(name, *two_texts(text, "two texts"))
    if SEPARATOR in text:
        reader = "a pretrained run" if task is None else f"task {task.name}"
        raise ValueError(f"{reader} reads one text, and there is a {SEPARATOR}")
    if task is None:
        _check_mask(text)
    return TextExample(name, text)


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


def reads_pairs(task: Task | None) -> bool:
    """Whether a task is about two texts."""
    return isinstance(task, (TextClassification, TextRegression)) and task.columns.text_pair is not None


def _check_mask(text: str) -> None:
    if MASK not in text:
        raise ValueError(f"there is no {MASK}; write one where a piece is to be guessed")


@dataclass(frozen=True, slots=True)
class _RefusedRows(BadRows):
    """Rows that cannot be read go where all that is no example goes."""

    refuse: Callable[[str], None]

    def found(self, kind: str, where: str, problem: str) -> None:
        """Refuse a row; see ``BadRows.found``."""
        self.refuse(f"{where}: {problem}")


def texts_of_table(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """Single texts or pairs, a row each; further columns, such as labels, are not looked at.

    Raises:
        DataError: the table lacks a column.
        ConfigError: a second column is named where the run reads single texts.
    """
    columns, layout = _columns(reading)
    wanted = [column for column in (columns.text, columns.text_pair, columns.id) if column is not None]
    layout = replace(layout, file_format=_table_format(reading.file_format))
    bad_rows = _RefusedRows("refuse", reading.notes, reading.refuse)
    num_texts = 1 if columns.text_pair is None else 2
    for row in rows_of_lines(lines.numbered, lines.name, wanted, layout=layout, bad_rows=bad_rows):
        texts = [clean(text or "", row.where, reading.notes) for text in row.values[:num_texts]]
        if not all(text.strip() for text in texts):
            reading.refuse(f"{row.where}: the text is empty")
            continue
        if reading.task is None:
            try:
                _check_mask(texts[0])
            except ValueError as problem:
                reading.refuse(f"{row.where}: {problem}")
                continue
        second = texts[1] if num_texts == 2 else None
        yield row.where, TextExample(row.values[-1] or str(row.number), texts[0], second)


def _table_format(file_format: InputFormat) -> TableFormat:
    formats: tuple[TableFormat, ...] = ("tsv", "quoted_tsv", "csv", "jsonl")
    return next(name for name in formats if name == file_format)


def _columns(reading: Reading) -> tuple[TextColumns, TableLayout]:
    """The columns that the user names, else those of the task's own files; with an optional ``id``."""
    task, given = reading.task, reading.columns
    columns, layout = (
        TextColumns.of(text_column=("text", "sentence"), text_pair_column=None, id_column=None, label_column="label"),
        TableLayout(),
    )
    if isinstance(task, (TextClassification, TextRegression)):
        columns, layout = task.columns, task.layout
    if "text_pair_column" in given and columns.text_pair is None:
        raise ConfigError(f"text_pair_column={given['text_pair_column']}: the run reads single texts")
    own_id = columns.id.names if columns.id is not None else ("id",)
    return TextColumns(
        text=_column("text_column", given, columns.text.names),
        text_pair=None if columns.text_pair is None else _column("text_pair_column", given, columns.text_pair.names),
        gold=columns.gold,
        id=replace(_column("id_column", given, own_id), required="id_column" in given),
    ), layout


def _column(setting: str, given: dict[str, str], names: tuple[str, ...]) -> Column:
    return Column((given[setting],) if setting in given else names, setting)
