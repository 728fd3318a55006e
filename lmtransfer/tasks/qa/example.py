"""A question about a passage, whose answer is a span of the passage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GoldSpan:
    """One annotator's answer.

    Attributes:
        text: the text that is scored.
        start: first character in the passage; None if the answer is not a span of it (yes, no).
    """

    text: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of a dialogue."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """One question.

    Attributes:
        answers: gold answers, the one to train on first; empty if the passage has none; None if hidden.
        history: earlier turns of the dialogue, oldest first.
        kind: index into the task's ``labels`` of another kind of answer (yes, no, unknown); None for a span.
        metadata: further gold labels in the source, by name, such as QuAC's followup.
    """

    id: str
    question: str
    passage: str
    answers: tuple[GoldSpan, ...] | None = None
    history: tuple[Turn, ...] = ()
    kind: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def has_gold(self) -> bool:
        """Whether the answer is known."""
        return self.answers is not None

    @property
    def content(self) -> tuple[str, ...]:
        """Question, passage and earlier turns of the dialogue."""
        return (self.question, self.passage, *(text for turn in self.history for text in (turn.question, turn.answer)))

    @property
    def class_index(self) -> int:
        """0 for a span, 1 for no answer, 2 and up for other kinds of answer."""
        if self.kind is not None:
            return 2 + self.kind
        return 0 if self.answers is None or self.answers else 1

    @property
    def group(self) -> str:
        """The passage, which all questions of a dialogue share."""
        return self.passage
