"""The report on the terminal: the answer, the table, the tables of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmtransfer.reporting.render.answer import answer
from lmtransfer.reporting.render.rows import table_rows
from lmtransfer.reporting.render.tables import PLUS_MINUS, sweep_table, terminal_table
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.sweeps import Sweep, outside

if TYPE_CHECKING:
    from lmtransfer.system.console import Console

#: The width where the output is no terminal, such as a log.
_WIDTH = 100


def report_console() -> Console:
    """A console on standard output: as wide as the terminal, without colour where there is none."""
    from lmtransfer.system.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def print_report(entries: Sequence[Entry], sweeps: Sequence[Sweep], console: Console) -> None:
    """Print the answer, the table of what is no point of a sweep, and a table for each sweep."""
    sign = plus_minus(console)
    rows = table_rows(outside(entries, sweeps))
    console.print(answer(entries), style="bold", markup=False)
    if rows:
        console.print(terminal_table(rows, plus_minus=sign))
    for sweep in sweeps:
        console.print(sweep_table(sweep, plus_minus=sign))


def plus_minus(console: Console) -> str:
    """The sign, as far as the console can show it."""
    try:
        PLUS_MINUS.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return "+-"
    return PLUS_MINUS
