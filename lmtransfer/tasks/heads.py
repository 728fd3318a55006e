"""Specifications of heads: their targets, the kind of answer, and the meaning of the outputs.

The trainable heads are in ``transfer.heads``.

Shape legend: R rows of targets, K columns of a head's outputs, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from typing_extensions import override

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.label_checks import list_labels, quote_label

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

    first: Values  # position of the word's first token in the sequence
    counts: Values  # number of tokens in the word
    tags: Values  # tag of the word; -1 if hidden


@dataclass(frozen=True, slots=True)
class SpanTargets(Targets[Values]):
    """A span of the passage for each sequence, or another kind of answer; int64, positions in the sequence."""

    start: Values  # first token of the answer; -1 if this sequence does not contain it or if hidden
    end: Values  # last token of the answer, or -1 in the same cases
    kind: Values  # index of the kind of an answer that is not a span; -1 for a span or no answer
    first: Values  # first token where an answer may be
    stop: Values  # one past the last token where an answer may be


#: ``balanced``, or the weight of each label in order.
ClassWeights = Literal["balanced"] | tuple[float, ...]


def weights_in_order(
    weights: Literal["balanced"] | Mapping[str, float] | None, labels: Sequence[str]
) -> ClassWeights | None:
    """Return the labels' weights in order; the default weight is 1."""
    if weights is None or weights == "balanced":
        return weights
    by_name = {str(name): weight for name, weight in weights.items()}
    for name, weight in by_name.items():
        if name not in labels:
            raise ConfigError(f"task.class_weights: {quote_label(name)} is not one of the labels {list_labels(labels)}")
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(f"task.class_weights.{name}={weight} must be a number above 0, such as 2.5")
    return tuple(float(by_name.get(label, 1.0)) for label in labels)


def balanced_weights(labels_N: np.ndarray, *, num_labels: int) -> np.ndarray:
    """Return weights that give all labels the same total weight: N / (labels that occur * count of the label).

    These are the weights of scikit-learn's ``class_weight="balanced"``. A label that does not occur has weight 1.
    """
    counts_C = np.bincount(labels_N, minlength=num_labels)
    even = len(labels_N) / max(1, int((counts_C > 0).sum()))
    return np.divide(even, counts_C, out=np.ones(num_labels), where=counts_C > 0)


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The specification of a head, which describes targets and outputs without building the head."""

    kind: ClassVar[str]
    module: ClassVar[str]  # full name of the head's class, a ``transfer.heads.Head``
    per: ClassVar[Literal["sequence", "token"]]  # whether there are logits for each sequence or for each token
    has_mean: ClassVar[bool] = False  # whether outputs of several heads can be averaged
    may_be_unreachable: ClassVar[bool] = False  # whether some gold answers cannot be represented exactly by tokens

    num_labels: int = 0  # number of labels, or of kinds of answer other than a span; 0 if there are none
    pairs: bool = False

    def predictions(self, outputs: np.ndarray) -> np.ndarray | None:
        """Return the prediction for each row of outputs (R, K), shape (R,) or (R, C); None if rows are combined."""
        return None

    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray | None:
        """Return the gold answers to compare with ``predictions``; None if ``predictions`` returns None."""
        return None

    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Average the outputs of several heads, (R, K) each; requires ``has_mean``."""
        raise NotImplementedError(f"outputs of {self.kind} cannot be averaged")

    def counts(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Yield how often each label is the gold answer."""
        gold = self.gold(targets)
        if gold is not None:
            yield from ((name, int((gold == index).sum())) for index, name in enumerate(labels))

    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """Describe the target of one sequence, with its gold answer if known."""
        return f"{len(targets)} answers"

    def marks(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Mapping[int, str]:
        """Return marks to display at the tokens of one sequence: a word after the token, or "" to highlight it."""
        return {}


@dataclass(frozen=True, slots=True)
class ClassificationSpec(HeadSpec):
    """One of C labels per sequence; outputs are the C logits."""

    kind: ClassVar[str] = "classification"
    module: ClassVar[str] = "lmtransfer.transfer.heads.ClassificationHead"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    has_mean: ClassVar[bool] = True

    class_weights: ClassWeights | None = None
    label_smoothing: float = 0.0  # share of each training target that is spread evenly over all labels, 0 to 1

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return the label with the highest logit."""
        return outputs.argmax(1)

    @override
    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        return LabelTargets.of(targets).labels

    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return the logits of the mean probabilities."""
        logits = np.stack(outputs).astype(np.float64)
        logs = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
        return np.logaddexp.reduce(logs, axis=0) - np.log(len(outputs))

    @override
    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        label = int(self.gold(targets)[0])
        return "label hidden" if label < 0 else f"label {labels[label]}"


@dataclass(frozen=True, slots=True)
class MultiLabelSpec(HeadSpec):
    """Any number of the C labels per sequence; outputs are the C logits, each an independent decision."""

    kind: ClassVar[str] = "multi_label"
    module: ClassVar[str] = "lmtransfer.transfer.heads.MultiLabelHead"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    has_mean: ClassVar[bool] = True

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return whether each label's probability is above 0.5, shape (R, C)."""
        return outputs > 0

    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        """Return whether each sequence has each label, shape (R, C)."""
        return LabelSetTargets.of(targets).labels > 0

    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return the logits of the mean probabilities."""
        logits = np.stack(outputs).astype(np.float64)
        has, has_not = (-np.logaddexp(0, sign * logits) for sign in (-1, 1))  # log-probabilities
        mean: np.ndarray = np.logaddexp.reduce(has, axis=0) - np.logaddexp.reduce(has_not, axis=0)
        return mean

    @override
    def counts(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Iterator[tuple[str, int]]:
        yield from zip(labels, self.gold(targets).sum(0).tolist(), strict=True)

    @override
    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        (label_row,) = LabelSetTargets.of(targets).labels
        if (label_row < 0).any():
            return "labels hidden"
        return f"labels {', '.join(np.array(labels)[label_row > 0]) or 'none'}"


@dataclass(frozen=True, slots=True)
class RegressionSpec(HeadSpec):
    """One number per sequence, which is the only output, (R, 1)."""

    kind: ClassVar[str] = "regression"
    module: ClassVar[str] = "lmtransfer.transfer.heads.RegressionHead"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    has_mean: ClassVar[bool] = True

    @override
    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0]

    @override
    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        return ScoreTargets.of(targets).scores

    @override
    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        mean: np.ndarray = np.mean(outputs, axis=0)
        return mean

    @override
    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        return f"score {self.gold(targets)[0]:g}"


@dataclass(frozen=True, slots=True)
class TaggingSpec(HeadSpec):
    """One of C tags per word; outputs are the C logits of each word."""

    kind: ClassVar[str] = "tagging"
    module: ClassVar[str] = "lmtransfer.transfer.heads.TaggingHead"
    per: ClassVar[Literal["sequence", "token"]] = "token"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return the tag with the highest logit."""
        return outputs.argmax(1)

    @override
    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        return TagTargets.of(targets).tags

    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """Return the number of words."""
        return f"{len(targets)} words"

    def marks(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Mapping[int, str]:
        """Return the tag after each word's first token, except the first label, which most words have."""
        targets_of = TagTargets.of(targets)
        pairs = zip(targets_of.first.tolist(), targets_of.tags.tolist(), strict=True)
        return {first: f"/{labels[tag]}" for first, tag in pairs if tag > 0}


@dataclass(frozen=True, slots=True)
class SpanSpec(HeadSpec):
    """The first and last token of an answer, and one of C other kinds of answer.

    Outputs are [start, end, score, null score, and the log odds of each other kind against a span]. Start and end are
    positions in the sequence, or -1 if no span is legal.
    """

    kind: ClassVar[str] = "span"
    module: ClassVar[str] = "lmtransfer.transfer.span_head.SpanHead"
    per: ClassVar[Literal["sequence", "token"]] = "token"
    may_be_unreachable: ClassVar[bool] = True

    max_answer_tokens: int | None = None  # maximum length of a legal answer; None for any length

    def counts(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Yield how often each kind of answer other than a span is the gold answer."""
        kinds = SpanTargets.of(targets).kind
        yield from ((name, int((kinds == index).sum())) for index, name in enumerate(labels))

    def expected_answer(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """Return the answer's kind, or its tokens."""
        targets_of = SpanTargets.of(targets)
        if targets_of.kind[0] >= 0:
            return f"answer: {labels[int(targets_of.kind[0])]}"
        return (
            "no answer here"
            if targets_of.start[0] < 0
            else f"answer: tokens {targets_of.start[0]} to {targets_of.end[0]}"
        )

    def marks(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Mapping[int, str]:
        """Return the tokens of the answer."""
        targets_of = SpanTargets.of(targets)
        return (
            {}
            if targets_of.start[0] < 0
            else dict.fromkeys(range(int(targets_of.start[0]), int(targets_of.end[0]) + 1), "")
        )
