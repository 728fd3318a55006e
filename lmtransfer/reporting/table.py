"""Tables: lines of named cells, and columns that show them.

A table is built once. Each line contains all values as named cells, which may have a sort key and a verdict's mark. A
column shows one cell of a line, or several, side by side or stacked. Each output format and width selects its own
columns. ``terminal_table``, ``markdown_table`` and the template ``table.html.j2`` render any table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from lmtransfer.reporting.verdict_text import interval_text, verdict_text
from lmtransfer.system.printable import format_difference, format_metric, in_percent
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from lmtransfer.system.console import Console


Order = Literal["ascending", "descending"]
#: The sign between mean and deviation.
PLUS_MINUS = "\u00b1"
_LONGEST_NUMBER = 16

#: The width of output that does not go to a terminal.
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict as a sign that is readable without color.

    Attributes:
        kind: better, worse, even (no difference, or below a baseline) or open (no verdict).
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
        sort: the sort key; None to sort by the text, with empty cells last.
        mark: the sign of a verdict, which is shown before the text.
    """

    text: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""
    sort: float | None = None
    mark: Mark | None = None

    @classmethod
    def of_lines(cls, texts: Sequence[str]) -> Cell:
        """Build a cell with one line for each text."""
        return cls(texts[0], tuple(texts[1:])) if texts else cls()

    @property
    def lines(self) -> list[str]:
        """All non-empty lines, from top to bottom."""
        return [line for line in (self.text, *self.notes, self.problem) if line]

    @property
    def is_number(self) -> bool:
        """Whether the text is a short number, such as ``0.673 +- 0.011``, which must not be broken across lines."""
        starts = self.text[:1].isdigit() or (self.text[:1] in "+-" and self.text[1:2].isdigit())
        return starts and len(self.text) <= _LONGEST_NUMBER


#: Stands for a cell missing from a line.
_EMPTY = Cell()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, which shows one or several cells of each line.

    A cell is given by its name, or by a phrase that contains the name in braces: ``{tokens} tokens``. If the cell is
    empty, the phrase is left out.

    Attributes:
        text: the cells to show side by side; by default, the cell that has the heading as its name.
        notes: the cells to show below the text.
        first: the sort order after the first click on the heading; None if the column cannot be sorted.
        width: the minimum and the maximum width on a terminal; None for the width of the content.
        has_unit: whether a terminal shows the note of each group, which is the metric, in this column.
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
        """Combine the cells of a line that this column shows into one cell."""
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
    """Split a phrase into the text before the name, the name, and the text after the name."""
    before, brace, rest = part.partition("{")
    name, _, after = rest.partition("}")
    return (before, name, after) if brace else ("", part, "")


def _cell_texts(parts: Sequence[str], line: Line) -> list[str]:
    return [
        f"{before}{text}{after}"
        for before, name, after in map(_split, parts)
        for text in line.cells.get(name, _EMPTY).lines
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its cells, keyed by name; ``kind`` is a CSS class, such as ``control``."""

    cells: Mapping[str, Cell]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Lines that belong together, with a heading if ``title`` is not empty."""

    lines: tuple[Line, ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table."""

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
        """The cells of each row as plain text; commas separate the lines of a cell."""
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
    """Build a table with a single group from rows that have a cell for each heading."""
    columns = tuple(TableColumn(heading, (f"{place}",)) for place, heading in enumerate(headings))
    lines = (
        Line({f"{place}": Cell(cell) if isinstance(cell, str) else cell for place, cell in enumerate(row)})
        for row in rows
    )
    return ReportTable(name, columns, (Group(tuple(lines)),), note=note)


def metric_heading(metric: str, *, of_pretraining: bool = False) -> str:
    """Return a metric's name with its unit; the name of a pretraining loss is preceded by "validation"."""
    if of_pretraining and metric:
        return f"validation {metric}"
    return f"{metric} (%)" if in_percent(metric) else metric


def score_text(score: Spread | None, metric: str) -> str:
    """Format a mean and its deviation in the metric's unit: ``69.6 +- 0.5``; a single seed has no deviation."""
    if score is None:
        return ""
    text = format_metric(score.mean, metric)
    return text if score.deviation is None else f"{text} {PLUS_MINUS} {format_metric(score.deviation, metric)}"


def difference_text(difference: Difference | None, metric: str) -> str:
    """Format a difference with its corrected interval: ``+2.8 (+1.2 to +4.4)``."""
    if difference is None:
        return ""
    text, interval = format_difference(difference.delta, metric), interval_text(difference, metric)
    return f"{text} ({interval})" if interval else text


def score_cell(score: Spread | None, metric: str) -> Cell:
    """Build the cell of a score."""
    return Cell(score_text(score, metric), sort=None if score is None else score.mean)


def metrics_cell(scores: Mapping[str, Spread]) -> Cell:
    """Build the cell of the other metrics, with a line for each: ``macro_f1 (%) 69.6 +- 0.5``."""
    return Cell.of_lines([f"{metric_heading(metric)} {score_text(score, metric)}" for metric, score in scores.items()])


def difference_cells(difference: Difference | None, metric: str) -> dict[str, Cell]:
    """Build the cells for a difference: its value, its corrected interval, and its verdict with a mark."""
    if difference is None:
        return {}
    return {
        "difference": Cell(format_difference(difference.delta, metric), sort=difference.delta),
        "interval": Cell(interval_text(difference, metric)),
        "verdict": Cell(verdict_text(difference, metric), mark=mark_of(difference)),
    }


def markdown_table(table: ReportTable) -> str:
    """Render a table as Markdown, with one line of text per row."""
    lines = [[_escape(text) for text in row] for row in (table.headings, *table.rows)]
    lines.insert(1, ["---"] * len(table.columns))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _escape(text: str) -> str:
    return re.sub(r"([\\`|<>\[\]*_~])", r"\\\1", " ".join(text.split()))


def report_console() -> Console:
    """Create a console for standard output, as wide as the terminal or, without one, 100 characters wide."""
    from lmtransfer.system.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def print_table(table: ReportTable, console: Console) -> None:
    """Print a table, with ``+-`` in place of the plus-minus sign if the terminal cannot show this sign."""
    try:
        PLUS_MINUS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        console.print(terminal_table(table, plus_minus="+-"))
    else:
        console.print(terminal_table(table))


def terminal_table(table: ReportTable, *, plus_minus: str = PLUS_MINUS) -> RichTable:
    """Render a table for rich; the first line of a cell is normal, and the others are dim."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    def text(content: str, style: str = "") -> Text:
        return Text(content.replace(PLUS_MINUS, plus_minus), style=style)

    rich_table = RichTable(
        title=text(table.title, "bold") if table.title else None,
        title_justify="left",
        caption=text(table.note, "table.caption") if table.note else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in table.columns:
        smallest, largest = column.width
        rich_table.add_column(text(column.heading), overflow="fold", min_width=smallest, max_width=largest)
    for group in table.groups:
        rich_table.add_section()
        if group.title:
            titles = [group.note if column.has_unit else "" for column in table.columns]
            rich_table.add_row(*(text(title, "bold") for title in (group.title, *titles[1:])))
        for line in group.lines:
            cells = []
            for column in table.columns:
                first, *rest = column.cell(line).lines or [""]
                cell = text(first, "bold" if column.is_bold else "")
                cells.append(Text.assemble(cell, *(text(f"\n{note}", "dim") for note in rest)))
            rich_table.add_row(*cells)
    return rich_table
