"""A text with several continuations, one of which is right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """One text with its choices.

    Attributes:
        id: name for people and files.
        text: the text that all choices belong to.
        choices: the choices, at least two.
        label: index of the right choice; None if it is hidden.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    label: int | None = None

    @property
    def has_gold(self) -> bool:
        """Whether the right choice is known."""
        return self.label is not None

    @property
    def class_index(self) -> int:
        """The right choice."""
        return -1 if self.label is None else self.label

    @property
    def group(self) -> str:
        """The text."""
        return self.text

    @property
    def content(self) -> tuple[str, ...]:
        """The text and its choices."""
        return (self.text, *self.choices)
