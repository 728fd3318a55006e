"""The results of screening: counts, and a list with one line per document."""

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
    """How much of an evaluation set occurs in the corpus.

    Attributes:
        texts: number of distinct texts.
        searched: number of texts long enough to be searched for.
        found: number of texts that occur in at least one document.
        documents: number of documents that contain at least one of the texts.
    """

    texts: int
    searched: int
    found: int = 0
    documents: int = 0


@dataclass(slots=True)
class Findings:
    """The result of a screening.

    Attributes:
        documents: number of documents in the corpus.
        near_duplicates: number of near-duplicates of earlier documents; the next two fields count some of them.
        same_shingles: number of near-duplicates with Jaccard similarity 1.
        across_split: number of near-duplicate pairs of which only one document is held out for validation.
        overlapping: number of documents that contain evaluation texts.
        found_words: number of words in all matching documents.
        words: number of words in the corpus.
        overlaps: how much of each evaluation set occurs in the corpus.
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
    def num_matches(self) -> int:
        """Number of documents that ``drop`` removes."""
        return self.near_duplicates + self.overlapping

    def write(self, folder: Path, documents: np.ndarray) -> None:
        """Write the counts and the indices of the matching documents."""
        np.save(folder / "found.npy", documents)
        write_json(folder / "findings.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """Read the counts."""
        value: Mapping[str, Any] = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
        return cls(**{**value, "overlaps": {name: Overlap(**counts) for name, counts in value["overlaps"].items()}})


def matching_documents(folder: Path) -> np.ndarray:
    """Return the sorted indices of the matching documents, int64."""
    return np.load(folder / "found.npy", allow_pickle=False)


def list_path(folder: Path) -> Path:
    """Return the path of the list: JSON lines with key, text and reason of each match, in corpus order."""
    return folder / "found.jsonl"
