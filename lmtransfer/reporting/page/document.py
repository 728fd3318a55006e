"""Self-contained HTML files from templates. They load nothing, and all text from run directories is escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDER = Path(__file__).parent / "templates"


def document(template: str, *, title: str, with_script: bool = False, folder: Path | None = None, **values: Any) -> str:
    """Render a complete page.

    Args:
        template: file name of a template that extends ``base.html.j2``.
        with_script: whether tables can be sorted, which needs the page's only script.
        folder: the folder with ``template`` and other templates; None for the reports' folder.
        values: template values; all text in them is escaped.
    """
    script = _source("sort.js") if with_script else ""
    return (
        _environment(folder or _FOLDER)
        .get_template(template)
        .render(title=title, style=_source("style.css"), script=script, policy=policy(script), **values)
    )


def policy(script: str) -> str:
    """Return the content security policy: no requests, and no script except ``script``."""
    script_source = ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        script_source = f"; script-src 'sha256-{digest}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{script_source}"


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _source(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
