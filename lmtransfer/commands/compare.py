"""Compare two runs, or two groups of runs: the difference, its verdict, and the examples that differ."""

from __future__ import annotations

from pathlib import Path

from lmtransfer.config.settings import CompareSettings
from lmtransfer.reporting.comparison.comparison import add_margin
from lmtransfer.reporting.comparison.page import print_comparison, write_comparison
from lmtransfer.reporting.comparison.pretraining import compare_pretrainings
from lmtransfer.reporting.comparison.sides import read_sides
from lmtransfer.reporting.comparison.task import compare_sides
from lmtransfer.reporting.table import report_console


def run(settings: CompareSettings) -> Path:
    """Read both sides, print the comparison, and write its page."""
    one, other = read_sides([settings.runs] if isinstance(settings.runs, str) else settings.runs)
    compare = compare_pretrainings if one.first.is_pretraining else compare_sides
    comparison = add_margin(compare(one, other), settings.margin)
    console = report_console()
    print_comparison(comparison, console, most=settings.most)
    folder = None if settings.to is None else Path(settings.to).expanduser()
    path = write_comparison(comparison, folder, most=settings.most)
    content = "everything" if comparison.flips is None else "all flipped examples"
    console.print(f"Page, with {content} in a .json file next to it: {path}", markup=False, soft_wrap=True)
    return path.parent
