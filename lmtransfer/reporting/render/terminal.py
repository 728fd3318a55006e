"""Tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtransfer.reporting.table import PLUS_MINUS, ReportTable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from lmtransfer.system.console import Console

#: The width if the output is not a terminal but, for example, a log.
_WIDTH = 100


def report_console() -> Console:
    """Create a console on standard output, with the width and colors of the terminal."""
    from lmtransfer.system.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def print_table(table: ReportTable, console: Console) -> None:
    """Print a table; an ASCII-only terminal shows ``+-`` between mean and deviation."""
    try:
        PLUS_MINUS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        console.print(terminal_table(table, plus_minus="+-"))
    else:
        console.print(terminal_table(table))


def terminal_table(table: ReportTable, *, plus_minus: str = PLUS_MINUS) -> RichTable:
    """Render a table: the first line of each cell unchanged, the others dim below it, with empty lines between groups.

    Args:
        plus_minus: the sign between mean and deviation.
    """
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
