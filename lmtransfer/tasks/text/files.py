"""Texts in tables: a task's splits, from files or from the hub, and the user's input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.parquet_files import label_name
from lmtransfer.data.tables import (
    TABLE_FORMATS,
    TEXT_COLUMNS,
    BadRows,
    ColumnSpec,
    OpenTable,
    TableLayout,
    TableRecord,
    TableRow,
    check_columns,
    read_rows,
    rows_of,
)
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.input_files import SEPARATOR, InputFile, InputRow, OpenInput, Reader, two_texts
from lmtransfer.tasks.label_checks import as_integer, to_nfc
from lmtransfer.tasks.settings import ColumnNames, HubSource, TextTableSettings
from lmtransfer.tasks.text.example import TextExample

#: The number that marks a hidden label on the hub.
HIDDEN_NUMBER = "-1"


@dataclass(frozen=True, slots=True)
class TextRow:
    """A text or pair of texts with its gold answer as written in the file."""

    id: str
    where: str
    text: str
    text_pair: str | None
    gold: str | None  # label or score; None if hidden
    is_label_name: bool  # whether ``gold`` is a label name, even if the task's files write labels differently
    notes: Notes  # those of the split
    language: str | None = None
    is_missing: bool = False  # whether the row has no gold answer, not even a value that marks a hidden one


@dataclass(frozen=True, slots=True)
class TextColumns:
    """The columns to read."""

    text: ColumnSpec
    text_pair: ColumnSpec | None  # the second text; None if the examples are single texts
    gold: ColumnSpec
    id: ColumnSpec | None  # ids of the examples; None to number them
    language: ColumnSpec | None = None

    @classmethod
    def of(cls, settings: TextTableSettings, *, gold: str) -> TextColumns:
        """Build the columns from a task's settings; ``gold`` is the setting that names the gold answer's column."""
        text_pair, names = settings.text_pair_column, settings.id_column
        columns = cls(
            text=_column("text_column", settings.text_column),
            text_pair=None if text_pair is None else _column("text_pair_column", text_pair),
            gold=_column(gold, getattr(settings, gold)),
            id=None if names is None else _column("id_column", names),
        )
        for text in (columns.text, columns.text_pair):
            if text is not None and text.names == columns.gold.names:
                raise ConfigError(
                    f"{text.setting}={text}: {columns.gold.setting} names the same column, but texts and gold answers "
                    "must be in different columns"
                )
        return columns

    def all_columns(self, *, with_gold: bool) -> list[ColumnSpec]:
        """Return all columns: text, second text, gold answer, id, language."""
        gold = replace(self.gold, required=with_gold)
        columns = (self.text, self.text_pair, gold, self.id, self.language)
        return [column for column in columns if column is not None]


def _column(setting: str, names: ColumnNames) -> ColumnSpec:
    if not names:
        raise ConfigError(f"task.{setting} is empty; set the name of a column, or a list of alternative names")
    columns = (names,) if isinstance(names, str) else tuple(names)
    return ColumnSpec(columns, f"task.{setting}", is_text=setting == "text_column")


class TextFiles:
    """A task's splits, each from a file or, without a local file, from the hub."""

    def __init__(
        self, settings: TextTableSettings, columns: TextColumns, *, hidden_values: Iterable[str], task: str
    ) -> None:
        self.located = settings.located_files(task=task)
        self.columns = columns
        self.layout = settings.layout()
        self._hidden = frozenset(map(as_integer, hidden_values))
        self._dropped = frozenset(map(as_integer, settings.dropped_values))
        self.notes: dict[str, Notes] = {}

    def examples(self, split: str, example_of: Callable[[TextRow], TextExample]) -> list[TextExample]:
        """Return the examples of a split; ``example_of`` raises ValueError if the gold answer cannot be used."""
        notes = self.notes[split] = Notes()
        rows, bad_rows = self.rows(split, notes), BadRows(self.layout.bad_rows, notes)
        examples: list[TextExample] = []
        for row in rows if split.startswith("test") else self._with_gold(rows, notes):
            try:
                examples.append(example_of(row))
            except ValueError as problem:
                bad_rows.report("rows whose gold answer cannot be used", row.where, str(problem))
        if not examples:
            kinds = [f"{count:,} {kind} (first at {notes.first[kind]})" for kind, count in notes.counts.items()]
            raise DataError("; ".join([f"{self.located.origin(split)}: there are no examples", *kinds]))
        return examples

    def rows(self, split: str, notes: Notes) -> Iterator[TextRow]:
        """Yield the rows of a split, in the order of the source."""
        source, with_gold = self.located.locate(split), not split.startswith("test")
        columns, bad_rows = self.columns.all_columns(with_gold=with_gold), BadRows(self.layout.bad_rows, notes)
        if isinstance(source, Path):
            rows = read_rows(source, columns, layout=self.layout, bad_rows=bad_rows)
        else:
            rows = rows_of(hub_records(source, split, columns, places=self.located.places(split)), columns, bad_rows)
        yield from self._text_rows(rows, split, bad_rows)

    def _with_gold(self, rows: Iterator[TextRow], notes: Notes) -> Iterator[TextRow]:
        """Yield the rows with a gold answer; skip the others, or reject them all in one message."""
        num_rows, missing = 0, []
        for row in rows:
            num_rows += 1
            if row.is_missing:
                missing.append(row.where)
            else:
                yield row
        if missing and self.layout.bad_rows == "refuse":
            raise DataError(
                f"{missing[0]}: {len(missing):,} of {num_rows:,} rows have no value in the column {self.columns.gold} "
                "(this is the first). Correct the rows, or set task.bad_rows=skip to leave out and count such rows"
            )
        if missing:
            notes.add("rows without a gold answer, left out", missing[0], len(missing))

    def _text_rows(self, rows: Iterator[TableRow], split: str, bad_rows: BadRows) -> Iterator[TextRow]:
        num_texts = 1 if self.columns.text_pair is None else 2
        first_places: dict[str, str] = {}
        for row in rows:
            texts, gold = row.values[:num_texts], row.values[num_texts]
            if any(text is None for text in texts):
                bad_rows.report("rows without a text", row.where, "the text is missing")
                continue
            is_label_name = bool(row.is_label_name) and row.is_label_name[num_texts]
            if gold == "" and not self.columns.gold.may_be_list:
                gold = None  # an empty list is an answer, but an empty label is not
            number = None if gold is None else as_integer(gold)
            if number in self._dropped or (gold is None and is_label_name and HIDDEN_NUMBER in self._dropped):
                bad_rows.notes.add("rows without a gold answer, left out", row.where)
                continue
            row_id = None if self.columns.id is None else row.values[num_texts + 1] or ""
            if row_id == "" or (row_id is not None and first_places.setdefault(row_id, row.where) != row.where):
                problem = f"{first_places[row_id]} has the same id {row_id!r}" if row_id else "the id is missing"
                bad_rows.report("rows without a unique id", row.where, problem)
                continue
            if not all((text or "").strip() for text in texts):
                bad_rows.notes.add("empty texts", row.where)
            yield TextRow(
                id=f"{split}:{row.number}" if row_id is None else row_id,
                where=row.where,
                text=texts[0] or "",
                text_pair=texts[1] if num_texts == 2 else None,
                gold=None if gold is None or number in self._hidden else to_nfc(gold, row.where, bad_rows.notes),
                is_label_name=is_label_name,
                language=None if self.columns.language is None else row.values[-1],
                is_missing=gold is None and not is_label_name,
                notes=bad_rows.notes,
            )


def hub_records(source: HubSource, split: str, specs: Sequence[ColumnSpec], *, places: str) -> Iterator[TableRecord]:
    """Yield the requested columns of a split on the hub, with label names in place of label indices."""
    table = source.load(split, places=places)
    where = source.origin(split)
    check_columns(table.column_names, specs, where)
    columns = [name for name in table.column_names if any(name in column.names for column in specs)]
    names_of = {name: getattr(table.features[name], "names", None) for name in columns}
    renamed = frozenset(name for name, names in names_of.items() if names is not None)
    for number, cells in enumerate(zip(*(table[name] for name in columns), strict=True)):
        values = {
            name: value if (names := names_of[name]) is None else label_name(value, names)
            for name, value in zip(columns, cells, strict=True)
        }
        yield TableRecord(number, f"{where}, row {number}", values, renamed)


#: The columns of a table that is not one of the task's own files.
_USUAL_COLUMNS = TextColumns(
    text=ColumnSpec(TEXT_COLUMNS, "task.text_column"),
    text_pair=None,
    gold=ColumnSpec(("label",), "task.label_column"),
    id=None,
)


class TextReader(Reader):
    """A reader for the user's texts, or pairs of texts.

    Args:
        columns: columns of the task's own files; None for single texts in a column ``text`` or ``sentence``.
    """

    formats = ("text", *TABLE_FORMATS)
    file_only = ("parquet",)
    has_columns = True

    def __init__(
        self, kind: str, *, owner: str, columns: TextColumns | None = None, layout: TableLayout | None = None
    ) -> None:
        super().__init__(kind)
        self.json_format = "jsonl"
        self._owner, self._layout = owner, layout or TableLayout()
        self._columns = columns or _USUAL_COLUMNS

    def check(self, text: str) -> None:
        """Raise a ValueError with the reason if the model cannot process a single text."""

    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> TextExample:
        """Build an example from the text or the two texts on a line."""
        text = clean(line, where, notes)
        if self._columns.text_pair is not None:
            return TextExample(name, *two_texts(text, "two texts"))
        if SEPARATOR in text:
            raise ValueError(f"{self._owner} reads one text, but the line contains {SEPARATOR}")
        self.check(text)
        return TextExample(name, text)

    def parse_file(self, source: InputFile) -> OpenInput:
        """Open a table with one text or pair per row; other columns, such as labels, are not used."""
        columns = self._columns_to_read(source.columns)
        specs = [column for column in (columns.text, columns.text_pair, columns.id) if column is not None]
        table = source.open_table(specs, self._layout)
        return OpenInput(table.columns, self._rows(table, specs, source, num_texts=1 + (columns.text_pair is not None)))

    def _rows(
        self, table: OpenTable, specs: Sequence[ColumnSpec], source: InputFile, *, num_texts: int
    ) -> Iterator[InputRow]:
        for record in table.records:
            assert record.row is not None
            try:
                values = record.texts(specs, source.notes)
                texts = [text or "" for text in values[:num_texts]]
                name, is_empty = values[-1] or str(record.number), not all(text.strip() for text in texts)
                if num_texts == 1 and not is_empty:
                    self.check(texts[0])
            except ValueError as problem:
                source.refuse(f"{record.where}: {problem}", record.row)
                continue
            example = None if is_empty else TextExample(name, texts[0], texts[1] if num_texts == 2 else None)
            yield InputRow(record.where, name, example, record.row)

    def _columns_to_read(self, choices: Mapping[str, str]) -> TextColumns:
        """Return the columns that the user chose, or else those of the task's files; ``id`` is optional."""
        columns = self._columns
        if "text_pair_column" in choices and columns.text_pair is None:
            raise ConfigError(
                f"text_pair_column={choices['text_pair_column']}: leave out this setting; the run reads single texts"
            )

        def column(setting: str, names: tuple[str, ...], **of_texts: Any) -> ColumnSpec:
            return ColumnSpec((choices[setting],) if setting in choices else names, setting, **of_texts)

        # the input's column names may differ from those of the task's own files
        texts = columns.text.names if columns.text_pair is not None else (*columns.text.names, *TEXT_COLUMNS)
        of_texts = {"is_text": True, "advice": "format=text if each line is an input"}
        own_id = columns.id.names if columns.id is not None else ("id",)
        return TextColumns(
            text=column("text_column", tuple(dict.fromkeys(texts)), **of_texts),
            text_pair=None if columns.text_pair is None else column("text_pair_column", columns.text_pair.names),
            gold=columns.gold,
            id=replace(column("id_column", own_id), required="id_column" in choices),
        )
