"""What a task asks of a head: the kind of answer, what is asked of each sequence, and what the head's outputs say.

The heads themselves, which learn, are in ``transfer.heads``.

Shape legend: R rows of targets, K columns of a head's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

#: The target of an example whose gold answer is hidden.
NO_LABEL = -1

#: Arrays where examples are kept, tensors in a batch; of shape (R,).
Values = TypeVar("Values")


@dataclass(frozen=True, slots=True)
class Targets(Generic[Values]):
    """What a head is to answer: one row a sequence, or one a word. Each kind of head has its own fields."""

    @classmethod
    def of(cls, targets: Targets[Values]) -> Self:
        """The same, known to be of this kind."""
        assert isinstance(targets, cls), f"targets of {type(targets).__name__} where {cls.__name__} are asked for"
        return targets

    def __len__(self) -> int:
        """R."""
        return len(getattr(self, fields(self)[0].name))

    def each(self, change: Callable[[Any], Any]) -> Any:
        """Targets of the same kind, every field changed alike."""
        return type(self)(*(change(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class LabelTargets(Targets[Values]):
    """A label for each sequence.

    Attributes:
        labels: int64; -1 where hidden.
    """

    labels: Values


@dataclass(frozen=True, slots=True)
class ScoreTargets(Targets[Values]):
    """A number for each sequence.

    Attributes:
        scores: float32; NaN where hidden.
    """

    scores: Values


@dataclass(frozen=True, slots=True)
class TagTargets(Targets[Values]):
    """A tag for each word, in the order of the text; int64.

    Attributes:
        first: the word's first token, counted from the sequence's first.
        counts: its number of tokens.
        tags: its tag; -1 where hidden.
    """

    first: Values
    counts: Values
    tags: Values


@dataclass(frozen=True, slots=True)
class SpanTargets(Targets[Values]):
    """A span of the passage for each sequence, or another kind of answer; tokens are counted from the first, int64.

    Attributes:
        start: first token of the answer; -1 where there is none in this sequence, or it is hidden.
        end: its last token, likewise.
        kind: another kind of answer than a span; -1 for a span or none.
        first: first token that an answer may have.
        stop: one past the last of them.
    """

    start: Values
    end: Values
    kind: Values
    first: Values
    stop: Values


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What a head must give, and what can be said of its targets and outputs without one.

    Attributes:
        kind: the word for it in messages, results and exports.
        module: the class of the head, by its full name, a ``transfer.heads.base.Head``.
        per: what it has logits for: each sequence, or each token.
        has_mean: whether the outputs of several heads can be put together.
        may_be_unreachable: whether there are gold answers that cannot be given on some tokens.
        num_labels: how many labels, or other kinds of answer than a span, it tells apart; 0 where there are none.
        pairs: whether each sequence holds two texts.
    """

    kind: ClassVar[str]
    module: ClassVar[str]
    per: ClassVar[Literal["sequence", "token"]]
    has_mean: ClassVar[bool] = False
    may_be_unreachable: ClassVar[bool] = False

    num_labels: int = 0
    pairs: bool = False

    def said(self, outputs: np.ndarray) -> np.ndarray | None:
        """What each row of outputs (R, K) says in a single value, shape (R,); None where it takes more than one."""
        return None

    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray | None:
        """The gold answers that ``said`` is compared with; None where that is None."""
        return None

    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """The outputs of several heads, (R, K) each, as those of one; where ``has_mean``."""
        raise NotImplementedError(f"{self.kind} has no mean")

    def counts(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Iterator[tuple[str, int]]:
        """How often each label is the gold answer."""
        gold = self.gold(targets)
        if gold is not None:
            yield from ((name, int((gold == index).sum())) for index, name in enumerate(labels))

    def asked(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """What is asked about one sequence, in words; its gold answer where there is one."""
        return f"{len(targets)} answers"

    def marks(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Mapping[int, str]:
        """What is to be shown at tokens of one sequence: a word behind the token, or "" to bring it out."""
        return {}


@dataclass(frozen=True, slots=True)
class ClassificationSpec(HeadSpec):
    """One of C labels a sequence; outputs are the C logits."""

    kind: ClassVar[str] = "classification"
    module: ClassVar[str] = "lmtransfer.transfer.heads.sequences.ClassificationHead"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    has_mean: ClassVar[bool] = True

    def said(self, outputs: np.ndarray) -> np.ndarray:
        """The label with the highest logit."""
        return outputs.argmax(1)

    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        """The labels."""
        return LabelTargets.of(targets).labels

    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Logits of the mean probabilities."""
        logits = np.stack(outputs).astype(np.float64)
        logs = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
        return np.logaddexp.reduce(logs, axis=0) - np.log(len(outputs))

    def asked(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """The label."""
        label = int(self.gold(targets)[0])
        return "label hidden" if label < 0 else f"label {labels[label]}"


@dataclass(frozen=True, slots=True)
class RegressionSpec(HeadSpec):
    """One number a sequence; outputs are the number, (R, 1)."""

    kind: ClassVar[str] = "regression"
    module: ClassVar[str] = "lmtransfer.transfer.heads.sequences.RegressionHead"
    per: ClassVar[Literal["sequence", "token"]] = "sequence"
    has_mean: ClassVar[bool] = True

    def said(self, outputs: np.ndarray) -> np.ndarray:
        """The number."""
        return outputs[:, 0]

    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        """The scores."""
        return ScoreTargets.of(targets).scores

    def mean(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Mean numbers."""
        found: np.ndarray = np.mean(outputs, axis=0)
        return found

    def asked(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """The score."""
        return f"score {self.gold(targets)[0]:g}"


@dataclass(frozen=True, slots=True)
class TaggingSpec(HeadSpec):
    """One of C tags a word; outputs are the C logits of each word."""

    kind: ClassVar[str] = "tagging"
    module: ClassVar[str] = "lmtransfer.transfer.heads.tagging.TaggingHead"
    per: ClassVar[Literal["sequence", "token"]] = "token"

    def said(self, outputs: np.ndarray) -> np.ndarray:
        """The tag with the highest logit."""
        return outputs.argmax(1)

    def gold(self, targets: Targets[np.ndarray]) -> np.ndarray:
        """The tags."""
        return TagTargets.of(targets).tags

    def asked(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """The number of words."""
        return f"{len(targets)} words"

    def marks(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Mapping[int, str]:
        """The tag behind the first token of each word, but for the first of the tags, which is that of most words."""
        told = TagTargets.of(targets)
        pairs = zip(told.first.tolist(), told.tags.tolist(), strict=True)
        return {first: f"/{labels[tag]}" for first, tag in pairs if tag > 0}


@dataclass(frozen=True, slots=True)
class SpanSpec(HeadSpec):
    """The first and last token of an answer, and one of C other kinds of answer.

    Outputs are [start, end, score, null score, and for each other kind its log odds against a span]; start and end are
    tokens of the sequence, or -1 where no span is legal.

    Attributes:
        max_answer_tokens: longest legal answer; None: any.
    """

    kind: ClassVar[str] = "span"
    module: ClassVar[str] = "lmtransfer.transfer.heads.span.SpanHead"
    per: ClassVar[Literal["sequence", "token"]] = "token"
    may_be_unreachable: ClassVar[bool] = True

    max_answer_tokens: int | None = None

    def counts(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Iterator[tuple[str, int]]:
        """How often each other kind is the gold answer."""
        kinds = SpanTargets.of(targets).kind
        yield from ((name, int((kinds == index).sum())) for index, name in enumerate(labels))

    def asked(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> str:
        """The answer's kind, or its tokens."""
        told = SpanTargets.of(targets)
        if told.kind[0] >= 0:
            return f"answer: {labels[int(told.kind[0])]}"
        return "no answer here" if told.start[0] < 0 else f"answer: tokens {told.start[0]} to {told.end[0]}"

    def marks(self, targets: Targets[np.ndarray], labels: Sequence[str]) -> Mapping[int, str]:
        """The tokens of the answer."""
        told = SpanTargets.of(targets)
        return {} if told.start[0] < 0 else dict.fromkeys(range(int(told.start[0]), int(told.end[0]) + 1), "")
