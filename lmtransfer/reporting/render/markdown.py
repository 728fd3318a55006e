"""Tables in Markdown."""

from __future__ import annotations

import re

from lmtransfer.reporting.table import Table


def markdown_table(table: Table) -> str:
    """Draw a table with one line of text for each of its lines."""
    lines = [[_escaped(text) for text in row] for row in (table.headings, *table.rows)]
    lines.insert(1, ["---"] * len(table.columns))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _escaped(text: str) -> str:
    """The text on one line, with Markdown's own characters escaped."""
    return re.sub(r"([\\`|<>\[\]*_~])", r"\\\1", " ".join(text.split()))
