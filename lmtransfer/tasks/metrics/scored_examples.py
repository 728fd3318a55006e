"""A run's prediction for each example, and each example's contribution to each metric.

Shape legend: N examples, R answers (one per example, per word, or per label of each example).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np

from lmtransfer.tasks.metrics import labels
from lmtransfer.tasks.metrics.chunks import Chunk, Chunks, chunk_scores

#: The metrics that are computed from all answers together, by the kind of answer.
_OF_ANSWERS = {
    "classification": ("accuracy", "f1", "macro_f1", "matthews"),
    "multi_label": ("macro_f1",),
    "regression": labels.CORRELATIONS,
}
#: Maximum number of examples for which a metric without a shortcut is recomputed with each example left out.
_MOST_LEFT_OUT = 5_000


Kind = Literal["classification", "multi_label", "regression", "tagging", "span", "pairs"]

#: Maximum number of bytes in an id, and in an answer or gold answer; longer texts are cut.
MOST_ID_BYTES, MOST_TEXT_BYTES = 100, 300


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """A metric as a quotient of two sums over examples.

    The counts are 1 for a mean, and the number of words of each sentence for accuracy over words. For F1 of spans, the
    parts are twice the correct spans, and the counts are the predicted spans plus the gold spans.
    """

    parts: np.ndarray
    counts: np.ndarray  # float64, shape (N,); 0 for an example that does not count

    @classmethod
    def mean(cls, scores: Iterable[float]) -> Ratio:
        """Build a mean from one score per example."""
        parts = np.array(list(scores), dtype=np.float64)
        return cls(parts, np.ones(len(parts)))

    def value(self, rows: np.ndarray | None = None) -> float | None:
        """Return the metric over all examples, or over some rows (which may repeat); None if no example counts."""
        parts, counts = (self.parts, self.counts) if rows is None else (self.parts[rows], self.counts[rows])
        total = float(counts.sum())
        return float(parts.sum()) / total if total else None


@dataclass(frozen=True, slots=True, eq=False)
class ScoredExamples:
    """The answers to one split.

    Attributes:
        keys: unique keys that match examples across runs: a hash of the content, uint64, shape (N,).
        clusters: index of each example's group, such as its passage, int64, shape (N,).
        lengths: number of characters in each input, int64, shape (N,).
        predicted: index of the label (classification, tagging), 1 or 0 for each label in order (multi_label), or the
            score (regression), shape (R,); empty for spans and pairs.
        offsets: the answers of example n are ``predicted[offsets[n]:offsets[n + 1]]``, int64, shape (N + 1,).
        answers: text of each answer, cut at ``MOST_TEXT_BYTES``; for spans only.
        classes: class of each example, int64, shape (N,); -1 for none.
        confidences: probability of each answer, 0 to 1, floating point, shape (R,); empty if unknown.
        starts: first character of each answer in its passage, int64, shape (N,); -1 for an answer that is not a span;
            empty if unknown.
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
    confidences: np.ndarray = field(default_factory=lambda: np.zeros(0))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        """Return N."""
        return len(self.ids)

    def label_set(self, decisions: np.ndarray, row: int) -> str:
        """Return the names of an example's labels as one text."""
        chosen = np.flatnonzero(decisions[self.offsets[row] : self.offsets[row + 1]])
        return ", ".join(self.labels[label] for label in chosen.tolist()) or "no label"

    def fingerprint(self, metric: str) -> str:
        """Hash all that a score depends on except the answers: examples in any order, gold answers and labels.

        Two runs with the same hash performed the same task, even if its name differs.
        """
        positive = self.labels[self.positive] if metric == "f1" and self.kind == "classification" else None
        task = json.dumps([self.kind, sorted(self.labels), metric, positive])
        examples = sorted(
            f"{key} {json.dumps(gold)}" for key, gold in zip(self.keys.tolist(), self._gold(), strict=True)
        )
        return blake2b("\n".join([task, *examples]).encode(), digest_size=12).hexdigest()

    def _gold(self) -> list[Any]:
        """Return the gold answer of each example, with labels by name, so that their order does not matter."""
        if self.gold_answers:
            return list(self.gold_answers)
        parts = [self.gold[start:stop] for start, stop in pairwise(self.offsets.tolist())]
        if self.kind == "multi_label":
            return [sorted(self.labels[label] for label in np.flatnonzero(part)) for part in parts]
        if self.kind in ("classification", "tagging"):
            return [[self.labels[label] for label in part] for part in parts]
        return [part.tolist() for part in parts]

    def select(self, rows: np.ndarray) -> ScoredExamples:
        """Return the examples at these indices, in the given order; each index may occur at most once."""
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        places = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)] or [rows])
        if len(self.predicted) == len(self):
            places = rows  # one answer per example
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
            confidences=self.confidences[places] if len(self.confidences) else self.confidences,
            starts=self.starts[rows] if len(self.starts) else self.starts,
        )


@dataclass(frozen=True, slots=True)
class Predictions:
    """The answers of one training run, and the identity of that run."""

    task: str
    split: str
    main_metric: str
    seed: int | None  # seed of finetuning or of the probe; None if nothing was trained
    pretraining_seed: int | None  # seed of the pretraining run; None if unknown, or if the weights were random
    is_control: bool
    examples: ScoredExamples = field(repr=False)
    baseline: str = ""  # name of the baseline that produced the answers; empty for a trained model


def scored_examples(
    examples: Sequence[Any],
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
    confidences: Sequence[float | None] | np.ndarray | None = None,
    starts: np.ndarray | None = None,
) -> ScoredExamples:
    """Combine answers with the identity of their examples (``tasks.base.Example``); see ``ScoredExamples``.

    Args:
        words: number of answers for each example, shape (N,); by default one, or none without ``predicted``.
        confidences: probability of each answer, shape (R,); None if all are unknown, and in place of each unknown one.
    """
    empty = np.zeros(0, dtype=np.int64)
    has_confidences = confidences is not None and all(value is not None for value in confidences)
    if words is None:
        words = np.full(len(examples), 0 if predicted is None else 1)
    return ScoredExamples(
        kind=kind,
        labels=tuple(labels),
        ids=tuple(_cut(example.id, MOST_ID_BYTES) for example in examples),
        keys=example_keys(examples),
        clusters=_clusters(examples),
        lengths=np.array([sum(map(len, example.content)) for example in examples], dtype=np.int64),
        predicted=empty if predicted is None else predicted,
        gold=empty if gold is None else gold,
        offsets=np.concatenate([[0], np.cumsum(words)]).astype(np.int64),
        ratios=dict(ratios),
        classes=np.full(len(examples), -1) if classes is None else classes.astype(np.int64),
        answers=tuple(_cut(text, MOST_TEXT_BYTES) for text in answers),
        gold_answers=tuple(_cut(text, MOST_TEXT_BYTES) for text in gold_answers),
        class_names=tuple(class_names),
        positive=positive,
        confidences=np.array(confidences if has_confidences else [], dtype=np.float16),
        starts=empty if starts is None else starts.astype(np.int64),
    )


def example_keys(examples: Sequence[Any]) -> np.ndarray:
    """Hash the content of each example, uint64, shape (N,); each repetition of the same content gets its own hash."""
    seen: dict[bytes, int] = {}
    keys = np.zeros(len(examples), dtype=np.uint64)
    for row, example in enumerate(examples):
        content = blake2b(json.dumps(example.content).encode(), digest_size=16).digest()
        seen[content] = turn = seen.get(content, -1) + 1
        keys[row] = int.from_bytes(blake2b(content + str(turn).encode(), digest_size=8).digest(), "little")
    return keys


def _clusters(examples: Sequence[Any]) -> np.ndarray:
    """Number the groups in order of appearance; an example with group "" gets its own number."""
    numbers: dict[str, int] = {}
    clusters = np.zeros(len(examples), dtype=np.int64)
    for row, example in enumerate(examples):
        clusters[row] = numbers.setdefault(example.group or f"\0{row}", len(numbers))
    return clusters


def _cut(text: str, most_bytes: int) -> str:
    """Return the longest prefix of a text that fits into the given number of bytes."""
    clean = text.replace("\0", " ").encode("utf-8", "replace")  # handles lone surrogates, and NULs that end a field
    return clean[:most_bytes].decode("utf-8", "ignore")


def metric_value(examples: ScoredExamples, metric: str, rows: np.ndarray | None = None) -> float | None:
    """Recompute a metric from the predictions; None if they do not determine it.

    Args:
        rows: indices of examples, as sampled in a bootstrap (they may repeat); None for all examples.
    """
    if metric in examples.ratios:
        return examples.ratios[metric].value(rows)
    if metric not in _OF_ANSWERS.get(examples.kind, ()) or not (len(examples) if rows is None else len(rows)):
        return None
    predicted, gold = _by_example(examples)
    if rows is not None:
        predicted, gold = predicted[rows], gold[rows]
    return labels.metric_value(metric, predicted, gold, positive=examples.positive)


def undefined_metrics(examples: ScoredExamples, metrics: Iterable[str]) -> list[str]:
    """Return sentences about the metrics that are undefined for the answers and count as 0."""
    if examples.kind not in _OF_ANSWERS:
        return []
    predicted, gold = _by_example(examples)
    sentences = (labels.explain_undefined(name, predicted, gold, positive=examples.positive) for name in metrics)
    return [sentence for sentence in sentences if sentence]


def contributions(examples: ScoredExamples, metric: str) -> np.ndarray | None:
    """Return the contribution of each example to a metric: float64, shape (N,), whose mean is the metric.

    For a mean the contributions are its terms. For a ratio of sums they are its linearization. For any other metric
    they are the jackknife's pseudo-values without the bias correction (Efron & Tibshirani 1993, chapter 11). In all
    three cases their standard deviation divided by the root of N is a standard error of the metric.

    Returns:
        None if the predictions do not determine the metric, or the metric is undefined on them.
    """
    value, num = metric_value(examples, metric), len(examples)
    if value is None or not math.isfinite(value):
        return None
    ratio = examples.ratios.get(metric)
    if ratio is not None:
        return value + (ratio.parts - value * ratio.counts) / ratio.counts.mean()
    values = _leave_one_out(examples, metric)
    if values is None:
        return None
    return value + (num - 1) * (values.mean() - values)


def _leave_one_out(examples: ScoredExamples, metric: str) -> np.ndarray | None:
    """Return the metric with each example left out in turn, shape (N,)."""
    num = len(examples)
    if num < 2:
        return None
    predicted, gold = _by_example(examples)
    if examples.kind == "multi_label":
        right_NC, total_NC = predicted * gold, predicted + gold
        right_NC, total_NC = right_NC.sum(0) - right_NC, total_NC.sum(0) - total_NC
        f1_NC = np.divide(2 * right_NC, total_NC, out=np.zeros(total_NC.shape), where=total_NC > 0)
        mean_N: np.ndarray = f1_NC.mean(-1)
        return mean_N
    if examples.kind == "classification":  # examples with the same label and answer are interchangeable
        pairs, which, counts = np.unique(np.stack([predicted, gold]), axis=1, return_inverse=True, return_counts=True)
        values = []
        for pair in range(len(counts)):
            rest = counts - (np.arange(len(counts)) == pair)
            said, right = pairs[:, rest > 0]
            values.append(labels.metric_value(metric, said, right, positive=examples.positive, weights=rest[rest > 0]))
        return np.array(values)[which.reshape(-1)]
    if num > _MOST_LEFT_OUT:
        return None
    return np.array(
        [labels.metric_value(metric, np.delete(predicted, row), np.delete(gold, row)) for row in range(num)]
    )


def _by_example(examples: ScoredExamples) -> tuple[np.ndarray, np.ndarray]:
    """Return answers and gold answers, shape (N,), or (N, C) for sets of labels."""
    if examples.kind != "multi_label":
        return examples.predicted, examples.gold
    shape = len(examples), len(examples.labels)
    return examples.predicted.reshape(shape), examples.gold.reshape(shape)


#: Maximum number of classes whose scores are written.
MOST_CLASSES = 200


#: The scores of one class: ``precision``, ``recall`` and ``f1``, 0 to 1 (0 where the denominator is 0), and
#: ``support``, the number of its gold answers.
ClassScores: TypeAlias = dict[str, float]


def scores_by_class(answers: ScoredExamples) -> dict[str, ClassScores]:
    """Score each class separately.

    Returns:
        The scores by class name: for each label, or for each kind of chunk if tags mark chunks. Empty if the answers
            have no classes, or more than ``MOST_CLASSES``.
    """
    if answers.kind == "tagging" and "f1" in answers.ratios:
        scores = _of_chunks(answers)
    elif answers.kind in ("classification", "tagging"):
        scores = _of_labels(answers.labels, answers.gold, answers.predicted, classes=range(len(answers.labels)))
    elif answers.kind == "multi_label":
        gold_NC, predicted_NC = (side.reshape(-1, len(answers.labels)) for side in (answers.gold, answers.predicted))
        scores = _of_labels(answers.labels, gold_NC, predicted_NC, classes=None)
    else:
        return {}
    return scores if len(scores) <= MOST_CLASSES else {}


def _of_labels(
    names: Sequence[str], gold: np.ndarray, predicted: np.ndarray, *, classes: Sequence[int] | None
) -> dict[str, ClassScores]:
    from sklearn.metrics import precision_recall_fscore_support  # imported here, as in ``metrics.labels``

    columns = precision_recall_fscore_support(gold, predicted, labels=classes, zero_division=0.0)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    scores = ("precision", "recall", "f1", "support")
    return {name: dict(zip(scores, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def _of_chunks(answers: ScoredExamples) -> dict[str, ClassScores]:
    chunks = Chunks(labels=answers.labels)
    right, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
    for start, stop in zip(answers.offsets[:-1].tolist(), answers.offsets[1:].tolist(), strict=True):
        of_predicted, of_gold = (set[Chunk](chunks.of(side[start:stop])) for side in (answers.predicted, answers.gold))
        for counter, group in ((right, of_predicted & of_gold), (predicted, of_predicted), (gold, of_gold)):
            counter.update(chunk.kind for chunk in group)
    return {
        kind: {**chunk_scores(right[kind], predicted[kind], gold[kind]), "support": gold[kind]}
        for kind in sorted({*predicted, *gold})
    }


def mean_by_class(seeds: Sequence[Mapping[str, ClassScores]]) -> dict[str, ClassScores]:
    """Return the mean of each score over seeds, for the classes in all seeds."""
    names = [name for name in seeds[0] if all(name in scores for scores in seeds)]
    return {name: {score: fmean(scores[name][score] for scores in seeds) for score in seeds[0][name]} for name in names}
