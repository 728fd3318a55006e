"""The user's single texts and text pairs, from a line or from the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.tables import TABLE_FORMATS, TEXT_COLUMNS, ColumnSpec, TableLayout, open_table, rows_of
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.input_files import SEPARATOR, InputFile, LocatedExample, Reader, two_texts
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextColumns

#: The columns of a table that is not one of the task's own files.
_USUAL_COLUMNS = TextColumns(
    text=ColumnSpec(TEXT_COLUMNS, "task.text_column"),
    text_pair=None,
    gold=ColumnSpec(("label",), "task.label_column"),
    id=None,
)


class TextReader(Reader):
    """A reader of the user's texts, or pairs of texts.

    Args:
        columns: columns of the task's own files; None for single texts, in a column ``text`` or ``sentence``.
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
        """Check that a single text can be answered.

        Raises:
            ValueError: the text cannot be answered; the message gives the reason.
        """

    def parse_nonblank_line(self, line: str, where: str, name: str, notes: Notes) -> TextExample:
        """Build an example from the text, or the two texts, on a line."""
        text = clean(line, where, notes)
        if self._columns.text_pair is not None:
            return TextExample(name, *two_texts(text, "two texts"))
        if SEPARATOR in text:
            raise ValueError(f"{self._owner} reads one text, but the line contains {SEPARATOR}")
        self.check(text)
        return TextExample(name, text)

    def parse_file(self, source: InputFile) -> Iterator[LocatedExample]:
        """Yield one text or pair per row, ignoring further columns, such as labels."""
        columns = self._columns_to_read(source.columns)
        specs = [column for column in (columns.text, columns.text_pair, columns.id) if column is not None]
        bad_rows, is_pair = source.bad_rows, columns.text_pair is not None
        table = open_table(source.table, specs, layout=source.layout(self._layout), bad_rows=bad_rows)
        for row in rows_of(table.records, specs, bad_rows):
            texts = [clean(text or "", row.where, source.notes) for text in row.values[: 1 + is_pair]]
            try:
                if not all(text.strip() for text in texts):
                    raise ValueError("the text is empty")
                if not is_pair:
                    self.check(texts[0])
            except ValueError as problem:
                source.refuse(f"{row.where}: {problem}")
                continue
            yield row.where, TextExample(row.values[-1] or str(row.number), texts[0], texts[1] if is_pair else None)

    def _columns_to_read(self, choices: Mapping[str, str]) -> TextColumns:
        """Return the columns that the user names, or else those of the task's files; ``id`` is optional."""
        columns = self._columns
        if "text_pair_column" in choices and columns.text_pair is None:
            raise ConfigError(
                f"text_pair_column={choices['text_pair_column']}: leave this out, because the run reads single texts"
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
