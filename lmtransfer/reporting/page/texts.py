"""The interface for reading the texts of examples again, since runs do not store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.tasks.metrics.scored_examples import Predictions


@dataclass(frozen=True, slots=True)
class ExampleText:
    """The input of one example.

    Attributes:
        content: the input texts: a text, a pair, the words of a sentence, or a question, its passage and earlier turns.
        gold_start: index of the gold answer's first character in the passage; None if there is none or it is unknown.
    """

    content: tuple[str, ...]
    gold_start: int | None = None


@dataclass(frozen=True, slots=True)
class TextLookup:
    """The texts of some examples.

    Attributes:
        texts: the texts, by the key of the example.
        missing: why other texts are missing, as the end of a sentence; empty if no text is missing.
    """

    texts: Mapping[int, ExampleText] = field(default_factory=dict)
    missing: str = ""


class Texts(Protocol):
    """Finds the texts of examples without raising errors."""

    def find(self, run: Run, predictions: Predictions, keys: Sequence[int]) -> TextLookup:
        """Find the texts of some examples of a run.

        Args:
            keys: keys of the examples, from ``predictions.examples.keys``.
        """
        ...


class NoTexts(Texts):
    """Finds nothing, for reports that must not read task data."""

    @override
    def find(self, run: Run, predictions: Predictions, keys: Sequence[int]) -> TextLookup:
        return TextLookup(missing="the task data were not read for this page")
