"""What a corpus is: an ordered source of documents, a fingerprint of its content, and a split."""

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
        text: its text; one paragraph a line, lines separated by line feeds, never empty.
        key: where it comes from (``file:line``, ``file:row``, a module's name), for messages.
        held_out: True or False where the corpus itself says on which side of the split it falls; None where the
            hash of its text decides.
    """

    text: str
    key: str
    held_out: bool | None = None


@dataclass(slots=True)
class Notes:
    """Odd things met while reading: how many of each kind, and where the first one was.

    Attributes:
        counts: number by kind, such as ``{"NUL characters dropped": 3}``.
        first: ``file:line`` of the first one by kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, where: str, count: int = 1) -> None:
        """Count ``count`` more of ``kind``, met at ``where``."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.first.setdefault(kind, where)

    def as_dict(self) -> dict[str, dict[str, int | str]]:
        """``{kind: {"count": ..., "first": ...}}``, ready for JSON."""
        return {kind: {"count": count, "first": self.first[kind]} for kind, count in self.counts.items()}

    def clear(self) -> None:
        """Forget all, before another pass."""
        self.counts.clear()
        self.first.clear()


class Corpus(ABC):
    """An ordered source of documents.

    Attributes:
        name: short name, part of cache folders and of messages.
        notes: odd things met by the last (or the running) pass over ``documents()``.
        files: its files, where it has any.
    """

    name: str
    notes: Notes
    files: Sequence[str] = ()

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """All documents, in an order that is always the same, holding no more than one of them in memory."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of the content and of every setting that changes which documents come out."""

    @abstractmethod
    def is_validation(self, document: Document) -> bool:
        """Whether ``document`` belongs to the validation part; equal texts always fall on the same side."""

    def training_lines(self) -> Iterator[str]:
        """The lines of the training documents, as a tokenizer is trained on them."""
        for document in self.documents():
            if not self.is_validation(document):
                yield from document.text.split("\n")

    def fraction_read(self) -> float | None:
        """How much of the source the running pass has read, 0 to 1; None where that is not known."""
        return None


def clean(text: str, where: str, notes: Notes) -> str:
    """``text`` without NUL characters and lone surrogates (which JSON can smuggle in); each is counted."""
    if "\x00" in text:
        notes.add("NUL characters dropped", where, text.count("\x00"))
        text = text.replace("\x00", "")
    if not text.isascii() and _SURROGATES.search(text):
        text, count = _SURROGATES.subn("\ufffd", text)
        notes.add("lone surrogates replaced", where, count)
    return text
