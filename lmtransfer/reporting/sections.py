"""Sections of a report that each answer one question, with a figure and a sentence that explains it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import TypedDict

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import write_text
from lmtransfer.system.safe_files import read_json

#: The file in a study's folder that lists its sections.
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
        sentence: what the figure shows, and whether it is beyond chance.
        svg: the figure; a PNG of the same name is next to it.
    """

    title: str
    sentence: str
    command: str
    svg: Path


def write_sections(sections: Sequence[Section], folder: Path) -> None:
    """Write the sections to ``sections.json``, next to the folder ``figures`` with their figures."""
    content = [
        {"title": one.title, "sentence": one.sentence, "command": one.command, "figure": one.svg.stem}
        for one in sections
    ]
    write_text(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def find_sections(roots: Sequence[Path]) -> list[Section]:
    """Find the sections of all studies in some folders, at any depth, in path order.

    Unreadable files are skipped: the report then lacks a figure, which the study's command can draw again.
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
