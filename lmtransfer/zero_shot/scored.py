"""What a scoring without training gives back, whichever task it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmtransfer.kept_predictions.scored import ScoredExamples


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroShotScores:
    """The scores of a run on a task that needs no head.

    Attributes:
        metrics: name and value, the main metric first.
        method: a description of the scoring method.
        chance: the main metric of answers that know nothing.
        num_scored: number of examples.
        num_tokens: number of tokens that the encoder read.
        num_parameters: parameters of everything that was run.
        seconds: duration of the scoring.
        examples: the answer to each example.
        control: the metrics of the same encoder with random weights; None if it was not scored.
        control_examples: the answers of that encoder.
        more: further entries of the result.
        shown: the metrics to print below the main one, by the name to print.
        notes: sentences to print after the method.
    """

    metrics: dict[str, float]
    method: str
    chance: float
    num_scored: int
    num_tokens: int
    num_parameters: int
    seconds: float
    examples: ScoredExamples
    control: Mapping[str, float] | None = None
    control_examples: ScoredExamples | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
