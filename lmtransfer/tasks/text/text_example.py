"""A text or a pair of texts, with a label or a score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or pair of texts.

    Attributes:
        id: names it for people and files.
        text: the text, or the first of a pair.
        text_pair: the second of a pair, or None.
        label: index into the task's ``labels``; None where hidden, and where a score is asked for.
        score: the gold score of a regression task; None where hidden.
        part_of: the sentence that the text is a phrase of ("" for one of several); None where there is no such thing.
    """

    id: str
    text: str
    text_pair: str | None = None
    label: int | None = None
    score: float | None = None
    part_of: str | None = None

    @property
    def has_gold(self) -> bool:
        """Whether the label or the score is known."""
        return self.label is not None or self.score is not None

    @property
    def content(self) -> tuple[str, ...]:
        """The text, or the texts of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def stratum(self) -> int:
        """The label."""
        return -1 if self.label is None else self.label

    @property
    def group(self) -> str:
        """The sentence that it is a phrase of, else the text itself: the first of a pair, such as a premise."""
        return self.text if self.part_of is None else self.part_of
