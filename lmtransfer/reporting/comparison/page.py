"""A comparison on the terminal or as a self-contained page."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.comparison.comparison import Comparison
from lmtransfer.reporting.comparison.tables import headline, remarks, tables, to_json
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.render.terminal import print_table

if TYPE_CHECKING:
    from lmtransfer.system.console import Console


def print_comparison(comparison: Comparison, console: Console, *, most: int) -> None:
    """Print the difference, the remarks and the tables."""
    console.print(headline(comparison), style="bold", markup=False, soft_wrap=True)
    for line in remarks(comparison):
        console.print(line, markup=False, soft_wrap=True)
    for table in tables(comparison, most=most):
        print_table(table, console)


def write_comparison(comparison: Comparison, folder: Path | None, *, most: int) -> Path:
    """Write the page and a JSON file next to it; return the path of the page.

    Args:
        folder: the folder to write to; by default the folder ``compare`` in the nearest folder that contains both sides
            and is not a run.
        most: maximum number of flipped examples to show per side.

    Raises:
        RunDirectoryError: the files cannot be written.
    """
    folder = _default_folder(comparison) if folder is None else folder
    path = folder / f"{_slug(comparison.sides[0].name)}-against-{_slug(comparison.sides[1].name)}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(html_comparison(comparison, most=most), encoding="utf-8")
        path.with_suffix(".json").write_text(to_json(comparison), encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(
            f"to={folder}: the comparison cannot be written ({error.strerror or error}); set to= to another folder"
        ) from error
    return path


def html_comparison(comparison: Comparison, *, most: int) -> str:
    """Return the page as HTML."""
    return document(
        "comparison.html.j2",
        title=f"{comparison.sides[0].name} against {comparison.sides[1].name}",
        headline=headline(comparison),
        remarks=remarks(comparison),
        tables=tables(comparison, most=most),
    )


def _default_folder(comparison: Comparison) -> Path:
    """Return the folder ``compare`` in the nearest folder above both sides that is not a run."""
    tops = [entry.run.path.resolve() for side in comparison.sides for entry in side.entries]
    common = Path(os.path.commonpath([top.parent for top in tops]))
    while (common / "config.yaml").is_file() and common != common.parent:
        common = common.parent
    return common / "compare"


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.")[:60] or "run"
