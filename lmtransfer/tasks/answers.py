"""Answers (a run's predictions for examples), with one class per kind of head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LabelAnswer:
    """One of the labels."""

    label: int
    name: str
    probabilities: dict[str, float] | None = None  # probability of each label, by name; None for a baseline

    def as_dict(self) -> dict[str, Any]:
        """Return ``label`` and ``probabilities``."""
        return {"label": self.name, "probabilities": self.probabilities}


@dataclass(frozen=True, slots=True)
class LabelSetAnswer:
    """Any number of labels."""

    labels: tuple[int, ...]
    names: tuple[str, ...]
    probabilities: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return ``labels`` and ``probabilities``."""
        return {"labels": list(self.names), "probabilities": self.probabilities}


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """One of the choices of an example."""

    choice: int
    text: str
    probabilities: tuple[float, ...] = ()  # each choice's share of the total odds; empty for a baseline

    def as_dict(self) -> dict[str, Any]:
        """Return ``choice`` (counted from 0), its text as ``answer``, and ``probabilities``."""
        return {"choice": self.choice, "answer": self.text, "probabilities": list(self.probabilities) or None}


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """A number."""

    score: float

    def as_dict(self) -> dict[str, Any]:
        """Return ``score``."""
        return {"score": self.score}


@dataclass(frozen=True, slots=True)
class TagsAnswer:
    """A tag for each word."""

    tags: tuple[int, ...]
    names: tuple[str, ...]
    probabilities: tuple[float, ...] | None = None  # probabilities of the chosen tags; None for a baseline

    def as_dict(self) -> dict[str, Any]:
        """Return ``tags`` and ``probabilities``."""
        return {"tags": list(self.names), "probabilities": self.probabilities and list(self.probabilities)}


@dataclass(frozen=True, slots=True)
class SpanAnswer:
    """A span of the passage, an answer of another kind, or no answer.

    Attributes:
        start: first character of the answer in the passage; None if it is not a span.
        score: score of the best span, the sum of its start and end logits.
        null_score: the same score of "no answer here"; ``null_score`` minus ``score`` is the published "null odds".
        best: text of the best span, even if the answer is of another kind.
    """

    text: str
    start: int | None = None
    end: int | None = None
    score: float = 0.0
    null_score: float = 0.0
    kind: str | None = None
    best: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return ``answer`` with its position and scores."""
        return {
            "answer": self.text,
            "start": self.start,
            "end": self.end,
            "score": self.score,
            "null_score": self.null_score,
            "kind": self.kind,
        }
