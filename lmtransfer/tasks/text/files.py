"""Sources of a task's texts: one file per split, or a ``datasets`` name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.parquet_files import label_name
from lmtransfer.data.tables import BadRows, ColumnSpec, TableRecord, TableRow, check_columns, read_rows, rows_of
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.label_checks import to_nfc
from lmtransfer.tasks.places import HubSource, load_hub_table
from lmtransfer.tasks.settings import ColumnNames, TextTableSettings
from lmtransfer.tasks.text.example import TextExample

#: The number with which ``datasets`` marks a hidden label.
HIDDEN_NUMBER = "-1"


@dataclass(frozen=True, slots=True)
class TextRow:
    """One text or pair of texts with its gold answer as written.

    Attributes:
        gold: label or score; None if hidden.
        is_label_name: whether ``gold`` is a label name, even if the task's files write labels differently.
        is_missing: whether the row has no gold answer at all, not even a value that means a hidden one.
    """

    id: str
    where: str
    text: str
    text_pair: str | None
    gold: str | None
    is_label_name: bool
    language: str | None = None
    is_missing: bool = False


ExampleOf = Callable[[TextRow], TextExample]


@dataclass(frozen=True, slots=True)
class TextColumns:
    """The columns to read.

    Attributes:
        text_pair: the second of a pair; None if the examples are single texts.
        id: names of the examples; None to number them.
    """

    text: ColumnSpec
    text_pair: ColumnSpec | None
    gold: ColumnSpec
    id: ColumnSpec | None
    language: ColumnSpec | None = None

    @classmethod
    def of(cls, settings: TextTableSettings, *, gold: str) -> TextColumns:
        """Build the columns from a task's settings.

        Args:
            gold: name of the setting with the column of the gold answer.
        """
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
                    f"{text.setting}={text}: {columns.gold.setting} names the same column, but the texts and the "
                    "answers must be in different columns"
                )
        return columns

    def all_columns(self, *, with_gold: bool) -> list[ColumnSpec]:
        """Return all columns: text, second text, gold answer, id, language."""
        gold = replace(self.gold, required=with_gold)
        columns = (self.text, self.text_pair, gold, self.id, self.language)
        return [column for column in columns if column is not None]


def _column(setting: str, names: ColumnNames) -> ColumnSpec:
    if not names:
        raise ConfigError(f"task.{setting}: is empty; set the name of a column, or a list of possible names")
    columns = (names,) if isinstance(names, str) else tuple(names)
    return ColumnSpec(columns, f"task.{setting}", is_text=setting == "text_column")


class TextFiles:
    """A task's splits, from files, or from the hub for splits without a local file."""

    def __init__(
        self, settings: TextTableSettings, columns: TextColumns, *, hidden_values: Iterable[str], task: str
    ) -> None:
        self._task = task
        self._located = settings.located_files(task=task)
        self.columns = columns
        self.layout = settings.layout()
        self._hidden = frozenset(hidden_values)
        self._dropped = frozenset(settings.dropped_values)
        self._hub = hub = settings.hub_source()
        self.notes: dict[str, Notes] = {}
        self.splits = tuple(dict.fromkeys([*self._located.splits, *(hub.splits if hub else ())]))
        if not self.splits:
            raise ConfigError(
                "task.files is empty and task.hub is null: set a file for each split (task.files.train=...), or a "
                "datasets name with its splits"
            )

    def origin(self, split: str) -> str:
        """Return the file or hub split from which a split is read."""
        path = self._find(split)
        if path is not None:
            return str(path)
        if self._hub is not None:
            return self._hub.origin(split)
        raise self._located.missing_error(split, has_folds=True)

    def examples(self, split: str, example_of: ExampleOf) -> list[TextExample]:
        """Return the examples of a split, in the order of the source.

        Args:
            example_of: builds an example from a row; raises ValueError if the gold answer cannot be used.
        """
        notes = self.notes[split] = Notes()
        rows = self.rows(split, notes)
        examples = self._examples(rows if split.startswith("test") else self._with_gold(rows, notes), example_of, notes)
        if not examples:
            kinds = [f"{count:,} {kind} (first at {notes.first[kind]})" for kind, count in notes.counts.items()]
            raise DataError("; ".join([f"{self.origin(split)}: contains no examples", *kinds]))
        return examples

    def rows(self, split: str, notes: Notes) -> Iterator[TextRow]:
        """Yield the rows of a split, in the order of the source."""
        path = self._find(split)
        with_gold = not split.startswith("test")
        if path is not None:
            yield from self.rows_of(path, split, notes, with_gold=with_gold)
        elif self._hub is not None:
            places = self._located.places(split)
            columns = self.columns.all_columns(with_gold=with_gold)
            bad_rows = BadRows(self.layout.bad_rows, notes)
            records = hub_records(self._hub, split, columns, places=places)
            yield from self._text_rows(rows_of(records, columns, bad_rows), split, bad_rows)
        else:
            raise self._located.missing_error(split, has_folds=True)

    def rows_of(self, path: Path, split: str, notes: Notes, *, with_gold: bool) -> Iterator[TextRow]:
        """Yield the rows of a file.

        Args:
            split: name of the split in ids, as in ``split:number``.
        """
        bad_rows = BadRows(self.layout.bad_rows, notes)
        columns = self.columns.all_columns(with_gold=with_gold)
        rows = read_rows(path, columns, layout=self.layout, bad_rows=bad_rows)
        yield from self._text_rows(rows, split, bad_rows)

    def _examples(self, rows: Iterator[TextRow], example_of: ExampleOf, notes: Notes) -> list[TextExample]:
        bad_rows = BadRows(self.layout.bad_rows, notes)
        examples: list[TextExample] = []
        for row in rows:
            try:
                examples.append(example_of(row))
            except ValueError as problem:
                bad_rows.report("rows whose gold answer cannot be used", row.where, str(problem))
        return examples

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
                "(this is the first). Correct the rows, or set task.bad_rows=skip to leave such rows out and count them"
            )
        if missing:
            notes.add("rows without a gold answer, left out", missing[0], len(missing))

    def _find(self, split: str) -> Path | None:
        if split not in self.splits and self._hub is None:
            raise self._located.missing_error(split, has_folds=True)
        if split not in self.splits:
            raise DataError(f"split={split}: task {self._task} has the splits {', '.join(self.splits)}")
        return self._located.find(split)

    def _text_rows(self, rows: Iterator[TableRow], split: str, bad_rows: BadRows) -> Iterator[TextRow]:
        num_texts = 1 if self.columns.text_pair is None else 2
        first_places: dict[str, str] = {}
        for row in rows:
            texts, gold = row.values[:num_texts], row.values[num_texts]
            if any(text is None for text in texts):
                bad_rows.report("rows without a text", row.where, "there is no text")
                continue
            is_label_name = bool(row.is_label_name) and row.is_label_name[num_texts]
            if gold == "" and not self.columns.gold.may_be_list:
                gold = None  # an empty list is an answer, but an empty label is not
            if gold in self._dropped or (gold is None and is_label_name and HIDDEN_NUMBER in self._dropped):
                bad_rows.notes.add("rows without a gold answer, left out", row.where)
                continue
            row_id = None if self.columns.id is None else row.values[num_texts + 1] or ""
            if row_id == "" or (row_id is not None and first_places.setdefault(row_id, row.where) != row.where):
                problem = f"{first_places[row_id]} has the same id {row_id!r}" if row_id else "there is no id"
                bad_rows.report("rows without a unique id", row.where, problem)
                continue
            clean_texts = [clean(text, row.where, bad_rows.notes) for text in texts if text is not None]
            if not all(text.strip() for text in clean_texts):
                bad_rows.notes.add("empty texts", row.where)
            yield TextRow(
                id=f"{split}:{row.number}" if row_id is None else row_id,
                where=row.where,
                text=clean_texts[0],
                text_pair=clean_texts[1] if num_texts == 2 else None,
                gold=None if gold is None or gold in self._hidden else to_nfc(gold, row.where, bad_rows.notes),
                is_label_name=is_label_name,
                language=None if self.columns.language is None else row.values[-1],
                is_missing=gold is None and not is_label_name,
            )


def hub_records(source: HubSource, split: str, specs: Sequence[ColumnSpec], *, places: str) -> Iterator[TableRecord]:
    """Yield the requested columns of a split on the hub, with label numbers replaced by names."""
    table = load_hub_table(source, split, places=places)
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
