"""What a screening has found in a corpus: counts, and a list with one line for each document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.system.durable import write_json


@dataclass(slots=True)
class Overlap:
    """What of a set of evaluation texts is in the corpus.

    Attributes:
        texts: number of different texts.
        searched: number of those that are long enough to be searched for.
        found: number of those that are in at least one document.
        documents: number of documents that hold at least one of them.
    """

    texts: int
    searched: int
    found: int = 0
    documents: int = 0


@dataclass(slots=True)
class Findings:
    """The result of a screening.

    Attributes:
        documents: number of documents of the corpus.
        near_duplicates: number of documents that are nearly copies of earlier ones; the next two count some of them.
        same_shingles: those with the Jaccard similarity 1.
        across_split: those of which one is held out for validation and the other is not.
        overlapping: number of documents that hold evaluation texts.
        found_words: words of all these documents.
        words: words of the corpus.
        overlaps: what is in the corpus of each set of evaluation texts.
        examples: the first lines of the list.
    """

    documents: int = 0
    near_duplicates: int = 0
    same_shingles: int = 0
    across_split: int = 0
    overlapping: int = 0
    found_words: int = 0
    words: int = 0
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def found(self) -> int:
        """Number of documents that ``drop`` leaves out."""
        return self.near_duplicates + self.overlapping

    def write(self, folder: Path, documents: np.ndarray) -> None:
        """Write the counts, and the numbers of the documents that were found."""
        np.save(folder / "found.npy", documents)
        write_json(folder / "findings.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """Read the counts."""
        value: Mapping[str, Any] = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
        return cls(**{**value, "overlaps": {name: Overlap(**one) for name, one in value["overlaps"].items()}})


def found_documents(folder: Path) -> np.ndarray:
    """The numbers of the documents that were found, sorted, int64."""
    return np.load(folder / "found.npy", allow_pickle=False)


def list_path(folder: Path) -> Path:
    """The list: JSON lines with key, text and reason of each document that was found, in the order of the corpus."""
    return folder / "found.jsonl"
