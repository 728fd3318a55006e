"""One self-contained HTML file from a template: it loads nothing, and all text from run directories is escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDER = Path(__file__).parent / "templates"


def document(template: str, *, title: str, with_script: bool = False, folder: Path | None = None, **values: Any) -> str:
    """A complete page.

    Args:
        template: file name of a template that extends ``base.html.j2``.
        title: title of the window and heading of the page.
        with_script: whether tables can be sorted, which needs the one script of the page.
        folder: a folder with further templates, ``template`` among them; None: those of the reports.
        values: the values of the template; all text in them is escaped.
    """
    script = _source("sort.js") if with_script else ""
    return (
        _environment(folder or _FOLDER)
        .get_template(template)
        .render(title=title, style=_source("style.css"), script=script, policy=policy(script), **values)
    )


def policy(script: str) -> str:
    """The content security policy: no requests, and no script but this one.

    Args:
        script: the text between the tags of the script; "" for a page without one.
    """
    allowed = ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed = f"; script-src 'sha256-{digest}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:{allowed}"


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
