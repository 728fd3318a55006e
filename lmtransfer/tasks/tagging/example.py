"""A sentence with a tag for each word."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One sentence.

    Attributes:
        id: readable name.
        words: the words.
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
        """The words."""
        return self.words

    @property
    def class_index(self) -> int:
        """0, because there is a single class."""
        return 0

    @property
    def group(self) -> str:
        """The words."""
        return " ".join(self.words)
