"""What a run answered to each example, and what each example is worth in each metric.

Shape legend: N examples, R answers (N, or the words of all sentences).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, Protocol

import numpy as np

Kind = Literal["classification", "regression", "tagging", "span", "pairs"]

#: Bytes of an id, and of an answer or its gold answer, that are kept; what is longer is cut.
MOST_ID_BYTES, MOST_TEXT_BYTES = 100, 300


class Identified(Protocol):
    """As much of an example as tells it from others: ``tasks.base.Example``, in which the attributes are described."""

    @property
    def id(self) -> str: ...  # noqa: D102

    @property
    def group(self) -> str: ...  # noqa: D102

    @property
    def content(self) -> tuple[str, ...]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A metric as a sum over examples divided by another sum over them.

    A mean has counts of 1; the accuracy over words has the words of each sentence; F1 of spans has twice those that
    are right over those predicted and those in the gold answer.

    Attributes:
        parts: float64, shape (N,).
        counts: float64, shape (N,); 0 where an example does not count.
    """

    parts: np.ndarray
    counts: np.ndarray

    @classmethod
    def mean(cls, scores: Iterable[float]) -> Ratio:
        """The mean of one score an example."""
        parts = np.array(list(scores), dtype=np.float64)
        return cls(parts, np.ones(len(parts)))

    def value(self, rows: np.ndarray | None = None) -> float | None:
        """The metric over all examples, or over some rows (an example may come several times); None of nothing."""
        parts, counts = (self.parts, self.counts) if rows is None else (self.parts[rows], self.counts[rows])
        total = float(counts.sum())
        return float(parts.sum()) / total if total else None


@dataclass(frozen=True, slots=True, eq=False)
class ScoredExamples:
    """The answers to one split.

    Attributes:
        kind: of the answers.
        labels: names of the labels, in the order of the indices in ``predicted`` and ``gold``.
        ids: names of the examples for people, cut at ``MOST_ID_BYTES``.
        keys: what they are matched by across runs, each once: a hash of the content, uint64, shape (N,).
        clusters: number of what each shares with others, such as its passage, int64, shape (N,).
        lengths: characters of each input, int64, shape (N,).
        predicted: index of the label (classification, tagging), or the score (regression), shape (R,); empty for spans
            and pairs.
        gold: likewise.
        offsets: the answers of example n are ``predicted[offsets[n]:offsets[n + 1]]``, int64, shape (N + 1,).
        answers: text of each answer, cut at ``MOST_TEXT_BYTES``; for spans only.
        gold_answers: the first gold text of each, likewise ("" where there is no answer).
        ratios: the metrics that are ratios of sums, by name.
        classes: which kind of example each is, int64, shape (N,); -1 for none.
        class_names: names of those kinds.
        positive: index of the label whose F1 counts.
    """

    kind: Kind
    labels: tuple[str, ...]
    ids: tuple[str, ...]
    keys: np.ndarray
    clusters: np.ndarray
    lengths: np.ndarray
    predicted: np.ndarray
    gold: np.ndarray
    offsets: np.ndarray
    ratios: Mapping[str, Ratio]
    classes: np.ndarray
    answers: tuple[str, ...] = ()
    gold_answers: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    positive: int = 1

    def __len__(self) -> int:
        """N."""
        return len(self.ids)

    def select(self, rows: np.ndarray) -> ScoredExamples:
        """The examples at these numbers, in that order, each at most once."""
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        places = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)] or [rows])
        if len(self.predicted) == len(self):
            places = rows  # one answer each
        lengths = stops - starts
        return replace(
            self,
            ids=tuple(self.ids[row] for row in rows),
            keys=self.keys[rows],
            clusters=self.clusters[rows],
            lengths=self.lengths[rows],
            predicted=self.predicted[places] if len(self.predicted) else self.predicted,
            gold=self.gold[places] if len(self.gold) else self.gold,
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            ratios={name: Ratio(ratio.parts[rows], ratio.counts[rows]) for name, ratio in self.ratios.items()},
            classes=self.classes[rows],
            answers=tuple(self.answers[row] for row in rows) if self.answers else (),
            gold_answers=tuple(self.gold_answers[row] for row in rows) if self.gold_answers else (),
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """The answers of one training run, and which run it was.

    Attributes:
        task: name of the task.
        split: of it.
        main_metric: the one that decides.
        seed: of finetuning or of the probe; None where nothing was trained.
        pretraining_seed: of the run that it began from; None where that is not known, and from random weights.
        is_control: whether it began from random weights, as the control of the others.
        examples: the answers.
    """

    task: str
    split: str
    main_metric: str
    seed: int | None
    pretraining_seed: int | None
    is_control: bool
    examples: ScoredExamples = field(repr=False)


def scored_examples(
    examples: Sequence[Identified],
    *,
    kind: Kind,
    ratios: Mapping[str, Ratio],
    labels: Sequence[str] = (),
    predicted: np.ndarray | None = None,
    gold: np.ndarray | None = None,
    words: np.ndarray | None = None,
    classes: np.ndarray | None = None,
    class_names: Sequence[str] = (),
    answers: Iterable[str] = (),
    gold_answers: Iterable[str] = (),
    positive: int = 1,
) -> ScoredExamples:
    """Answers to examples, with what tells the examples apart; see ``ScoredExamples``.

    Args:
        examples: N of them.
        kind: of the answers.
        ratios: the metrics that are ratios of sums.
        labels: names of the labels.
        predicted: shape (R,).
        gold: shape (R,).
        words: answers of each example, shape (N,); one each by default, where there are any.
        classes: kind of each example, shape (N,).
        class_names: their names.
        answers: texts.
        gold_answers: texts.
        positive: index of the label whose F1 counts.
    """
    none = np.zeros(0, dtype=np.int64)
    if words is None:
        words = np.full(len(examples), 0 if predicted is None else 1)
    return ScoredExamples(
        kind=kind,
        labels=tuple(labels),
        ids=tuple(_cut(example.id, MOST_ID_BYTES) for example in examples),
        keys=_keys(examples),
        clusters=_clusters(examples),
        lengths=np.array([sum(map(len, example.content)) for example in examples], dtype=np.int64),
        predicted=none if predicted is None else predicted,
        gold=none if gold is None else gold,
        offsets=np.concatenate([[0], np.cumsum(words)]).astype(np.int64),
        ratios=dict(ratios),
        classes=np.full(len(examples), -1) if classes is None else classes.astype(np.int64),
        answers=tuple(_cut(text, MOST_TEXT_BYTES) for text in answers),
        gold_answers=tuple(_cut(text, MOST_TEXT_BYTES) for text in gold_answers),
        class_names=tuple(class_names),
        positive=positive,
    )


def _keys(examples: Sequence[Identified]) -> np.ndarray:
    """A hash of what each example holds; of examples that hold the same, the second is another one than the first."""
    seen: dict[bytes, int] = {}
    keys = np.zeros(len(examples), dtype=np.uint64)
    for row, example in enumerate(examples):
        content = blake2b(json.dumps(example.content).encode(), digest_size=16).digest()
        seen[content] = turn = seen.get(content, -1) + 1
        keys[row] = int.from_bytes(blake2b(content + str(turn).encode(), digest_size=8).digest(), "little")
    return keys


def _clusters(examples: Sequence[Identified]) -> np.ndarray:
    """The number of each example's group in the order in which they come; those of "" stand for themselves."""
    numbers: dict[str, int] = {}
    found = np.zeros(len(examples), dtype=np.int64)
    for row, example in enumerate(examples):
        found[row] = numbers.setdefault(example.group or f"\0{row}", len(numbers))
    return found


def _cut(text: str, most_bytes: int) -> str:
    """The text, or as much of its beginning as fits into so many bytes."""
    clean = text.replace("\0", " ").encode("utf-8", "replace")  # a lone surrogate, and NULs that end a field
    return clean[:most_bytes].decode("utf-8", "ignore")
