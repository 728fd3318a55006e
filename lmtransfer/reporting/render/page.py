"""The frame of every page: one self-contained HTML file in which all text is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

_STYLE = """
:root { --ink: #222; --quiet: #666; --line: #ddd; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 75rem; padding: 2rem 1.25rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
.answer { font-size: 1.15rem; border-left: .3rem solid var(--accent); padding: .5rem 0 .5rem 1rem; margin: 1rem 0; }
.quiet, figcaption { color: var(--quiet); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; } td.number { white-space: nowrap; }
td .quiet { font-size: .8rem; }
tr.group td { font-weight: 600; padding-top: 1rem; }
tr.majority td, tr.control td { color: var(--quiet); }
.better { color: #00664a; font-weight: 600; } .worse { color: #a33f00; font-weight: 600; }
figure { margin: 0 0 1.75rem; } figure svg { max-width: 100%; height: auto; display: block; }
details { border-bottom: 1px solid var(--line); padding: .4rem 0; } summary { cursor: pointer; }
pre { background: #f6f6f6; padding: .75rem; overflow-x: auto; font-size: .8rem; line-height: 1.45; }
.problem { color: #a33f00; }
"""

#: The page may not load or run anything, whatever text comes from a run directory.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, parts: Sequence[str]) -> str:
    """A complete page.

    Args:
        title: title of the window.
        parts: HTML of the body, with all text escaped already; empty parts are omitted.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body>\n</html>\n"
    )


def table(headings: Sequence[str], body: Sequence[str]) -> str:
    """A table that scrolls if it is wider than the window; ``body`` has a ``<tr>`` for each row."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    rows = "\n".join(body)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def cell(text: str) -> str:
    """A cell in which verdicts are coloured and numbers do not wrap."""
    verdict = text.partition(",")[0]
    css = verdict if verdict in ("better", "worse") else "number" if re.match(r"[+-]?\d", text) else ""
    return f'<td class="{css}">{escape(text)}</td>' if css else f"<td>{escape(text)}</td>"
