"""Tables as view data: headings, groups of rows, and cells with the number that sorts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lmtransfer.verdicts.difference import Difference

Order = Literal["ascending", "descending"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict as a sign, which is read without colour.

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
_LONGEST_NUMBER = 16


def mark_of(difference: Difference | None) -> Mark | None:
    """The mark of a difference's verdict; None if there is no difference."""
    return None if difference is None else _MARKS.get(difference.verdict, _OPEN)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        text: the text; empty for an empty cell.
        notes: quiet lines below the text.
        problem: a warning below the text.
        sort: what sorts the rows by this column, in plain units; None comes last.
        mark: the sign of a verdict, shown before the text.
    """

    text: str
    notes: tuple[str, ...] = ()
    problem: str = ""
    sort: float | str | None = None
    mark: Mark | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the cell shows nothing."""
        return not (self.text or self.notes or self.problem)

    @property
    def is_number(self) -> bool:
        """Whether the text is a number of a few characters, such as ``0.673 +- 0.011``, which should not be broken."""
        starts = self.text[:1].isdigit() or (self.text[:1] in "+-" and self.text[1:2].isdigit())
        return starts and len(self.text) <= _LONGEST_NUMBER


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column.

    Attributes:
        text: the text.
        first: the order of the rows after a first click; None: the column does not sort.
    """

    text: str
    first: Order | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One row; ``kind`` is a class of the style sheet, such as ``control``."""

    cells: tuple[Cell, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows below a heading of their own; without ``title`` there is no such heading."""

    lines: tuple[Line, ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: what the table holds, for screen readers.
        headings: headings of the columns.
        groups: the rows.
    """

    name: str
    headings: tuple[Heading, ...]
    groups: tuple[Group, ...]

    @property
    def sorts(self) -> bool:
        """Whether a column can be sorted."""
        return any(heading.first is not None for heading in self.headings)

    def without_empty(self) -> Table:
        """The same table without the columns that are empty in all rows."""
        lines = [line for group in self.groups for line in group.lines]
        kept = [place for place in range(len(self.headings)) if not all(line.cells[place].is_empty for line in lines)]
        groups = tuple(
            replace(
                group,
                lines=tuple(replace(line, cells=tuple(line.cells[place] for place in kept)) for line in group.lines),
            )
            for group in self.groups
        )
        return replace(self, headings=tuple(self.headings[place] for place in kept), groups=groups)


def plain_table(name: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of texts; verdicts, in a column of this name, get their marks."""
    lines = (
        Line(
            tuple(
                Cell(text, mark=_mark_of_text(text) if heading == "verdict" else None)
                for heading, text in zip(headings, row, strict=True)
            )
        )
        for row in rows
    )
    return Table(name, tuple(map(Heading, headings)), (Group(tuple(lines)),))


def _mark_of_text(text: str) -> Mark | None:
    """The mark of a verdict in words, such as ``better, of this checkpoint``; None without a verdict."""
    return _MARKS.get(text.partition(", ")[0], _OPEN) if text else None
