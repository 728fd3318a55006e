"""A text with several continuations, of which one or more are right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """One text with its choices.

    Attributes:
        id: readable name.
        text: the text that all choices belong to.
        choices: the choices, at least two.
        right_choices: indices of the right choices, at least one; None if hidden.
        fillings: the text that fills a gap in each choice; empty if the choices are scored as they are.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    right_choices: frozenset[int] | None = None
    fillings: tuple[str, ...] = ()

    @property
    def has_gold(self) -> bool:
        """Whether the right choices are known."""
        return self.right_choices is not None

    @property
    def class_index(self) -> int:
        """The first right choice."""
        return -1 if self.right_choices is None else min(self.right_choices)

    @property
    def group(self) -> str:
        """The text."""
        return self.text

    @property
    def content(self) -> tuple[str, ...]:
        """The text and its choices."""
        return (self.text, *self.choices)
