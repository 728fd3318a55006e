"""Answers (a run's predictions for examples), with one class per kind of head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CellType = Literal["string", "float64", "int64", "json"]
#: Columns of a table: each name's type (lists and objects are JSON in a cell), and the keys that lead to its value.
Cells = Mapping[str, tuple[CellType, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class LabelAnswer:
    """One of the labels."""

    label: int
    name: str
    probabilities: dict[str, float] | None = None  # probability of each label, by name; None for a baseline

    def as_dict(self) -> dict[str, Any]:
        """Return ``label``, its ``probability``, and the ``probabilities`` of all labels."""
        probability = None if self.probabilities is None else self.probabilities[self.name]
        return {"label": self.name, "probability": probability, "probabilities": self.probabilities}


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


@dataclass(frozen=True, slots=True)
class AnswerColumns:
    """What answers of one kind add to a table.

    Attributes:
        keys: the keys of the answers in JSON, as in ``as_dict``.
        cells: the columns of all other formats.
    """

    keys: tuple[str, ...]
    cells: Cells

    @classmethod
    def of(cls, **types: CellType) -> AnswerColumns:
        """Build columns that are the same in all formats."""
        return cls(tuple(types), {name: (kind, (name,)) for name, kind in types.items()})


def answer_columns(head_kind: str, labels: Sequence[str]) -> AnswerColumns:
    """Return the columns for the answers of a kind of head, including those for running text."""
    if head_kind == "classification":
        columns = AnswerColumns.of(label="string", probability="float64")
        return AnswerColumns((*columns.keys, "probabilities"), columns.cells)
    if head_kind == "multi_label":
        each: Cells = {label: ("float64", ("probabilities", label)) for label in labels}
        cells: Cells = {"labels": ("json", ("labels",)), **each}
        return AnswerColumns(("labels", "probabilities"), cells)
    if head_kind == "choice":
        return AnswerColumns.of(choice="int64", answer="string", probabilities="json")
    if head_kind == "tagging":
        return AnswerColumns.of(tags="json", probabilities="json")
    if head_kind == "span":
        places = AnswerColumns.of(answer="string", start="int64", end="int64", score="float64", null_score="float64")
        kind = AnswerColumns.of(kind="string")
        return AnswerColumns((*places.keys, *kind.keys), {**places.cells, **(kind.cells if labels else {})})
    assert head_kind == "regression", head_kind
    return AnswerColumns.of(score="float64")
