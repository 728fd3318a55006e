"""The interface of a corpus: an ordered source of documents, a fingerprint of its content, and a split."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        text: the text, one paragraph per line, separated by line feeds; never empty.
        key: the document's origin (``file:line``, ``file:row``, a module name), for messages.
        held_out: whether the document belongs to the validation split; None if the hash of its text decides.
    """

    text: str
    key: str
    held_out: bool | None = None


@dataclass(slots=True)
class Notes:
    """Irregularities in the input: for each kind, their number and the place of the first."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, where: str, count: int = 1) -> None:
        """Add ``count`` irregularities of ``kind`` at ``where``."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.first.setdefault(kind, where)

    def as_dict(self) -> SavedNotes:
        """Return ``{kind: {"count": ..., "first": ...}}``, ready for JSON."""
        return {kind: {"count": count, "first": self.first[kind]} for kind, count in self.counts.items()}

    def remove(self, kind: str) -> None:
        """Remove the irregularities of ``kind``."""
        self.counts.pop(kind, None)
        self.first.pop(kind, None)

    def clear(self) -> None:
        """Clear all counts before another pass."""
        self.counts.clear()
        self.first.clear()


SavedNotes = dict[str, dict[str, int | str]]


def without_file_names(notes: SavedNotes, files: Sequence[str]) -> SavedNotes:
    """Replace the file names in the result of ``Notes.as_dict`` with indices, for a cache that other users read."""
    saved: SavedNotes = {}
    for kind, note in notes.items():
        first = str(note["first"])
        owners = [index for index, name in enumerate(files) if first.startswith(name)]
        saved[kind] = dict(note)
        if owners:
            owner = max(owners, key=lambda index: len(files[index]))
            saved[kind] |= {"file": owner, "first": first.removeprefix(files[owner])}
    return saved


def with_file_names(saved: SavedNotes, files: Sequence[str]) -> SavedNotes:
    """Undo ``without_file_names`` for a corpus with the same content, whose files may have other names."""
    names = {kind: files[int(note["file"])] if "file" in note else "" for kind, note in saved.items()}
    return {kind: {"count": note["count"], "first": f"{names[kind]}{note['first']}"} for kind, note in saved.items()}


class Corpus(ABC):
    """An ordered source of documents; ``notes`` holds the irregularities of the last (or current) pass."""

    name: str
    notes: Notes
    files: Sequence[str] = ()

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield all documents, always in the same order, with at most one of them in memory."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hex digest of the content and of all settings that change the documents."""

    @abstractmethod
    def is_validation(self, document: Document) -> bool:
        """Whether ``document`` belongs to the validation split; identical texts are always in the same split."""

    @property
    def left_out(self) -> Notes:
        """What was left out when the files were chosen, which depends on where they are, not on their content."""
        return Notes()

    @property
    def commit(self) -> str | None:
        """Commit of the data set streamed from the hub; None for all other sources."""
        return None

    def training_lines(self) -> Iterator[str]:
        """Yield the lines of the training documents, for training a tokenizer."""
        for document in self.documents():
            if not self.is_validation(document):
                yield from document.text.split("\n")

    def fraction_read(self) -> float | None:
        """Return the share of the source read by the current pass, 0 to 1; None if unknown."""
        return None


def clean(text: str, where: str, notes: Notes) -> str:
    """Remove NUL characters and replace lone surrogates (which JSON can contain), counting both in ``notes``."""
    if "\x00" in text:
        notes.add("NUL characters dropped", where, text.count("\x00"))
        text = text.replace("\x00", "")
    if not text.isascii() and _SURROGATES.search(text):
        text, count = _SURROGATES.subn("\ufffd", text)
        notes.add("lone surrogates replaced", where, count)
    return text
