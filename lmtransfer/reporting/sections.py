"""The sections of a report; each answers a question with a figure and a sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json

#: The file in a study's folder that lists the study's sections.
FILE = "sections.json"


class _Saved(TypedDict):
    title: str
    sentence: str
    command: str
    figure: str


@dataclass(frozen=True, slots=True)
class Section:
    """A question with its answer.

    Attributes:
        sentence: the finding in the figure, and whether it is beyond chance.
        svg: the figure; a PNG of the same name is next to it.
    """

    title: str
    sentence: str
    command: str
    svg: Path


def write_sections(sections: Sequence[Section], folder: Path) -> None:
    """Write the sections to ``sections.json``; the figures are in the folder ``figures`` next to this file."""
    content = [
        {"title": one.title, "sentence": one.sentence, "command": one.command, "figure": one.svg.stem}
        for one in sections
    ]
    write_text(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def find_sections(roots: Sequence[Path]) -> list[Section]:
    """Find the sections of the studies in some folders, in path order.

    Unreadable files are skipped. The report then lacks a figure, which the study's command can draw again.
    """
    sections = []
    for path in sorted({path for root in roots for path in _files(root)}):
        try:
            saved_sections = read_json(path, list[_Saved], error=RunDirectoryError)
        except RunDirectoryError:
            continue
        for saved in saved_sections:
            svg = path.parent / "figures" / f"{Path(saved['figure']).name}.svg"
            if svg.is_file():
                sections.append(Section(saved["title"], saved["sentence"], saved["command"], svg))
    return sections


def _files(root: Path) -> list[Path]:
    return [path for pattern in (FILE, f"*/{FILE}", f"*/*/{FILE}") for path in root.resolve().glob(pattern)]
