"""A sentence whose words have tags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One sentence.

    Attributes:
        id: name for people and files.
        words: its words.
        tags: indices into the task's ``labels``, one per word; None if hidden.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...] | None = None

    @property
    def has_gold(self) -> bool:
        """Whether the tags are known."""
        return self.tags is not None

    @property
    def content(self) -> tuple[str, ...]:
        """Its words."""
        return self.words

    @property
    def class_index(self) -> int:
        """0: all sentences are of one class."""
        return 0

    @property
    def group(self) -> str:
        """Its words."""
        return " ".join(self.words)
