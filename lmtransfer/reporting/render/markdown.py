"""Tables in Markdown."""

from __future__ import annotations

import re

from lmtransfer.reporting.table import ReportTable


def markdown_table(table: ReportTable) -> str:
    """Render a table with one line of text per row."""
    lines = [[_escape(text) for text in row] for row in (table.headings, *table.rows)]
    lines.insert(1, ["---"] * len(table.columns))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _escape(text: str) -> str:
    """Put the text on one line and escape Markdown's special characters."""
    return re.sub(r"([\\`|<>\[\]*_~])", r"\\\1", " ".join(text.split()))
