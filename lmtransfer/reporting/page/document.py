"""Renders templates to self-contained HTML files, which load nothing and escape all text from run directories."""

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
        template: the file name of a template that extends ``base.html.j2``.
        with_script: whether to include the script that sorts tables.
        folder: the folder of ``template``; None for the templates of reports.
        values: the values for the template; text in them is escaped.
    """
    script = _source("sort.js") if with_script else ""
    return (
        _environment(folder or _FOLDER)
        .get_template(template)
        .render(title=title, style=_source("style.css"), script=script, policy=policy(script), **values)
    )


def policy(script: str) -> str:
    """Return a content security policy that allows no requests, and no script except ``script``."""
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
