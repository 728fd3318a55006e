"""A sentence with its tags as a file has them, by name, and with the line of each word."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """One sentence.

    Attributes:
        source: where it comes from: a file.
        lines: the line of each word in it.
        words: its words.
        tags: names, one a word; None where the source has none.
        name: the id it came with, if any.
    """

    source: str
    lines: tuple[int, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    name: str | None = None

    def where(self, word: int = 0) -> str:
        """``file:line`` of a word, for messages."""
        return f"{self.source}:{self.lines[word]}"
