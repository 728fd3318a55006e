"""Saved figures inside a page."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape

from lmtransfer.reporting.figures.style import SavedFigure
from lmtransfer.reporting.sections import Section


@dataclass(frozen=True, slots=True)
class ShownFigure:
    """A figure that this process has drawn.

    Attributes:
        caption: what it shows; empty if the figure says it itself.
        svg: the SVG element, in which matplotlib has escaped all text; the one value that a template does not escape.
    """

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section with its figure, which was read from a folder that may come from another person.

    Attributes:
        title: its heading.
        sentence: what the figure shows.
        command: the command that made it.
        source: the SVG as a ``data:`` address for an image, in which a browser runs and loads nothing.
    """

    title: str
    sentence: str
    command: str
    source: str


def shown_figure(figure: SavedFigure) -> ShownFigure:
    """Read the SVG of a saved figure, without its prolog, and name it for screen readers."""
    svg = figure.svg.read_text(encoding="utf-8")
    named = f'<svg role="img" aria-label="{escape(figure.title)}" '
    caption = "" if escape(figure.title, quote=False) in svg else figure.title
    return ShownFigure(caption, svg[svg.index("<svg") :].replace("<svg ", named, 1))


def shown_section(section: Section) -> ShownSection:
    """Read the figure of a section."""
    encoded = base64.b64encode(section.figure.svg.read_bytes()).decode()
    return ShownSection(section.title, section.sentence, section.command, f"data:image/svg+xml;base64,{encoded}")
