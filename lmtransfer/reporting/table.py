"""Tables: lines of named cells, and columns that show them.

A table is built once. Its lines hold each value as a separate named cell, with a sort key and the mark of a verdict. A
column shows one of these cells, or several, side by side or stacked, so each format and each width selects columns over
the same lines. ``render.terminal``, ``render.markdown`` and the template ``table.html.j2`` render any table without
knowing its content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lmtransfer.verdicts.difference import Difference

Order = Literal["ascending", "descending"]
#: The sign between mean and deviation.
PLUS_MINUS = "\u00b1"
_LONGEST_NUMBER = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict as a sign that can be read without color.

    Attributes:
        kind: better, worse, even (no difference shown, or below a baseline) or open (no verdict).
        sign: one character.
    """

    kind: Literal["better", "worse", "even", "open"]
    sign: str


_MARKS: dict[str, Mark] = {
    "better": Mark("better", "\u25b2"),
    "better but below a baseline": Mark("even", "\u25b3"),
    "worse": Mark("worse", "\u25bc"),
    "equivalent": Mark("even", "\u2248"),
    "no difference shown": Mark("even", "="),
}
_OPEN = Mark("open", "?")


def mark_of(difference: Difference | None) -> Mark | None:
    """Return the mark of a difference's verdict; None if there is no difference."""
    return None if difference is None else _MARKS.get(difference.verdict, _OPEN)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        text: the text; empty for an empty cell.
        notes: dim lines below the text.
        problem: a warning below the notes.
        sort: the sort key; None to sort by the text, with empty texts last.
        mark: the sign of a verdict, shown before the text.
    """

    text: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""
    sort: float | None = None
    mark: Mark | None = None

    @classmethod
    def of_lines(cls, texts: Sequence[str]) -> Cell:
        """Build a cell of several lines, or an empty cell."""
        return cls(texts[0], tuple(texts[1:])) if texts else cls()

    @property
    def lines(self) -> list[str]:
        """All non-empty lines, from top to bottom."""
        return [line for line in (self.text, *self.notes, self.problem) if line]

    @property
    def is_number(self) -> bool:
        """Whether the text is a short number, such as ``0.673 +- 0.011``, which should not be broken."""
        starts = self.text[:1].isdigit() or (self.text[:1] in "+-" and self.text[1:2].isdigit())
        return starts and len(self.text) <= _LONGEST_NUMBER


#: Stands for a cell missing from a line.
_EMPTY = Cell()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, which shows one cell of each line, or several cells as one.

    A cell is specified by its name, or by a phrase around the name: ``{tokens} tokens``. An empty cell is left out
    together with its phrase.

    Attributes:
        heading: the heading.
        text: cells that are shown side by side; by default the cell with the heading's name.
        notes: cells that are shown below the text.
        problem: the name of the cell with a warning, which is shown last; empty for none.
        separator: the text between the cells of ``text``.
        first: the sort order after the first click on the heading; None if the column cannot be sorted.
        width: minimum and maximum width on a terminal; None to fit the content.
        has_unit: whether, on a terminal, the note of a group (its metric) is shown above this column.
        is_bold: whether the text is bold on a terminal.
    """

    heading: str
    text: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    separator: str = " "
    first: Order | None = None
    width: tuple[int | None, int | None] = (None, None)
    has_unit: bool = False
    is_bold: bool = False

    def cell(self, line: Line) -> Cell:
        """Combine a line's cells that the column shows into one cell."""
        text = self.text or (self.heading,)
        cells = [line.cells.get(name, _EMPTY) for _, name, _ in map(_split, (*text, *self.notes))]
        return Cell(
            text=self.separator.join(_cell_texts(text, line)),
            notes=tuple(_cell_texts(self.notes, line)),
            problem=line.cells.get(self.problem, _EMPTY).text,
            sort=cells[0].sort,
            mark=next((cell.mark for cell in cells if cell.mark is not None), None),
        )


def _split(part: str) -> tuple[str, str, str]:
    """Split a phrase into the words before the cell's name, the name, and the words after it."""
    before, brace, rest = part.partition("{")
    name, _, after = rest.partition("}")
    return (before, name, after) if brace else ("", part, "")


def _cell_texts(parts: Sequence[str], line: Line) -> list[str]:
    """Return the lines of the cells, each with the words of its phrase."""
    return [
        f"{before}{text}{after}"
        for before, name, after in map(_split, parts)
        for text in line.cells.get(name, _EMPTY).lines
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its cells by name; ``kind`` is a class of the style sheet, such as ``control``."""

    cells: Mapping[str, Cell]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Lines that belong together; without ``title`` they have no heading of their own."""

    lines: tuple[Line, ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table.

    Attributes:
        name: a description of the content, for screen readers.
        columns: the columns that are shown.
        groups: the lines.
        title: the heading above the table on a terminal; empty for none.
        note: a sentence below the table.
    """

    name: str
    columns: tuple[TableColumn, ...]
    groups: tuple[Group, ...]
    title: str = field(default="", kw_only=True)
    note: str = field(default="", kw_only=True)

    @property
    def sorts(self) -> bool:
        """Whether any column can be sorted."""
        return any(column.first is not None for column in self.columns)

    @property
    def headings(self) -> list[str]:
        """The headings of the columns."""
        return [column.heading for column in self.columns]

    @property
    def lines(self) -> list[Line]:
        """The lines of all groups."""
        return [line for group in self.groups for line in group.lines]

    @property
    def rows(self) -> list[list[str]]:
        """The table as plain text, row by row; commas separate the parts of a cell."""
        return [[", ".join(column.cell(line).lines) for column in self.columns] for line in self.lines]

    def select(self, columns: Sequence[TableColumn]) -> ReportTable:
        """Return a table with the same lines and other columns."""
        return replace(self, columns=tuple(columns))

    def without_empty(self) -> ReportTable:
        """Drop the columns that are empty in all lines."""
        return self.select([column for column in self.columns if any(column.cell(line).lines for line in self.lines)])


def plain_table(
    name: str, headings: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, note: str = ""
) -> ReportTable:
    """Build a table of one group with a cell for each heading."""
    columns = tuple(TableColumn(heading, (f"{place}",)) for place, heading in enumerate(headings))
    lines = (
        Line({f"{place}": Cell(cell) if isinstance(cell, str) else cell for place, cell in enumerate(row)})
        for row in rows
    )
    return ReportTable(name, columns, (Group(tuple(lines)),), note=note)
