"""The targets of each kind of head: arrays in encoded examples, tensors in a batch.

Shape legend: R rows of targets, C labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

#: The target of an example whose gold answer is hidden.
NO_LABEL = -1

#: Arrays in encoded examples, tensors in a batch; shape (R,), or (R, C) for sets of labels.
Values = TypeVar("Values")


@dataclass(frozen=True, slots=True)
class Targets(Generic[Values]):
    """The targets of a head, one row per sequence or one row per word. Each kind of head has its own fields."""

    @classmethod
    def of(cls, targets: Targets[Values]) -> Self:
        """Return the same targets, typed as this class."""
        assert isinstance(targets, cls), f"targets are {type(targets).__name__}, but {cls.__name__} were requested"
        return targets

    def __len__(self) -> int:
        """Return R."""
        return len(getattr(self, fields(self)[0].name))

    def map(self, change: Callable[[Any], Any]) -> Any:
        """Return targets of the same kind, with ``change`` applied to every field."""
        return type(self)(*(change(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class LabelTargets(Targets[Values]):
    """A label for each sequence."""

    labels: Values  # int64; -1 if hidden


@dataclass(frozen=True, slots=True)
class LabelSetTargets(Targets[Values]):
    """A set of labels for each sequence."""

    labels: Values  # int8, shape (R, C): 1 if the sequence has the label, otherwise 0; -1 in the whole row if hidden


@dataclass(frozen=True, slots=True)
class ScoreTargets(Targets[Values]):
    """A number for each sequence."""

    scores: Values  # float32; NaN if hidden


@dataclass(frozen=True, slots=True)
class TagTargets(Targets[Values]):
    """A tag for each word, in the order of the text; int64."""

    first: Values  # the word's first token, counted from the first token of the sequence
    counts: Values  # number of tokens in the word
    tags: Values  # tag of the word; -1 if hidden


@dataclass(frozen=True, slots=True)
class SpanTargets(Targets[Values]):
    """A span of the passage for each sequence, or another kind of answer; int64, tokens counted in the sequence."""

    start: Values  # first token of the answer; -1 if this sequence does not contain it or if hidden
    end: Values  # last token of the answer, or -1 in the same cases
    kind: Values  # index of another kind of answer than a span; -1 for a span or no answer
    first: Values  # first token where an answer may be
    stop: Values  # one past the last token where an answer may be
