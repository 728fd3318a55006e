"""Selects the worst errors of a run, which most seeds make with high probability.

Shape legend: S seeds, N examples, R words in all sentences (or labels of all examples).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from typing_extensions import override

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.scores import mean_scores
from lmtransfer.tasks.metrics.scored_examples import Predictions

#: Maximum number of errors to show.
MAX_ERRORS = 10
#: A question whose mean F1 over seeds is below this is an error.
_WRONG_F1 = 0.5

#: The tag of words outside spans, and the letters that precede the kind of a span (see ``metrics.chunks``).
_OUTSIDE, _PREFIXES = "O", "BIESLU"
#: Maximum number of words in a sentence; longer sentences are not shown.
MAX_WORDS = 60


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """An example that a run gets wrong.

    Attributes:
        row: the index of the example in the kept predictions.
        predicted: the most frequent wrong prediction of the seeds; for regression, the mean over seeds.
        num_agreeing: the number of seeds with this prediction; None for regression.
        confidence: the mean probability of this prediction over these seeds; None if it was not kept.
        score: the mean F1 or squared error over seeds; None for labels.
    """

    row: int
    gold: str
    predicted: str
    num_agreeing: int | None
    num_seeds: int
    confidence: float | None = None
    score: float | None = None


def worst_labels(answers: Sequence[Predictions]) -> list[WrongAnswer]:
    """Select the examples with the most certain wrong label, most certain first.

    The certainty is the probability of the wrong label, summed over the seeds that predict this label. If probabilities
    were not kept, the certainty is the number of these seeds.
    """
    examples = answers[0].examples
    gold_N = examples.gold
    predicted_SN = np.stack([predictions.examples.predicted for predictions in answers])
    weights_SN = certainties(answers)
    seeds, rows = np.nonzero(predicted_SN != gold_N)
    # An integer for each pair of an example and a wrong label.
    codes, which = np.unique(rows * max(1, len(examples.labels)) + predicted_SN[seeds, rows], return_inverse=True)
    certainty = np.bincount(which, weights=(np.ones(len(seeds)) if weights_SN is None else weights_SN[seeds, rows]))
    counts = np.bincount(which)
    errors: dict[int, WrongAnswer] = {}
    for place in np.argsort(-certainty, kind="stable").tolist():
        row, label = divmod(int(codes[place]), max(1, len(examples.labels)))
        if row not in errors:
            errors[row] = WrongAnswer(
                row,
                examples.labels[gold_N[row]],
                examples.labels[label],
                int(counts[place]),
                len(answers),
                None if weights_SN is None else float(certainty[place] / counts[place]),
            )
        if len(errors) == MAX_ERRORS:
            break
    return list(errors.values())


def worst_label_sets(answers: Sequence[Predictions]) -> list[WrongAnswer]:
    """Select the examples with the most certain wrong decisions about labels, most certain first.

    The certainty is the sum of the probabilities of all wrong decisions, over labels and seeds. If probabilities were
    not kept, the certainty is the number of wrong decisions.
    """
    examples = answers[0].examples
    weights_SR = certainties(answers)
    wrong_SR = np.stack([predictions.examples.predicted for predictions in answers]) != examples.gold
    weights_R = (wrong_SR if weights_SR is None else wrong_SR * weights_SR).sum(0)
    certainty_N = weights_R.reshape(len(examples), len(examples.labels)).sum(1)
    order = np.argsort(-certainty_N, kind="stable")[:MAX_ERRORS]
    errors = []
    for row in order[certainty_N[order] > 0].tolist():
        gold = examples.label_set(examples.gold, row)
        predicted = Counter(
            predictions.examples.label_set(predictions.examples.predicted, row) for predictions in answers
        )
        wrong, times = next((answer, times) for answer, times in predicted.most_common() if answer != gold)
        errors.append(WrongAnswer(row, gold, wrong, times, len(answers)))
    return errors


def worst_scores(answers: Sequence[Predictions]) -> list[WrongAnswer]:
    """Select the examples with the largest mean squared error over seeds, largest first."""
    gold_N = answers[0].examples.gold
    predicted_SN = np.stack([predictions.examples.predicted for predictions in answers])
    errors_N = ((predicted_SN - gold_N) ** 2).mean(0)
    order = np.argsort(-errors_N, kind="stable")[:MAX_ERRORS]
    return [
        WrongAnswer(
            row,
            f"{gold_N[row]:g}",
            f"{predicted_SN[:, row].mean():.2f}",
            None,
            len(answers),
            score=float(errors_N[row]),
        )
        for row in order.tolist()
        if errors_N[row] > 0
    ]


def worst_spans(answers: Sequence[Predictions]) -> list[WrongAnswer]:
    """Select the questions with the lowest mean F1 over seeds; on ties, those on which the seeds agree most."""
    first = answers[0].examples
    if any("f1" not in predictions.examples.ratios or not predictions.examples.answers for predictions in answers):
        return []
    f1_N = mean_scores(answers, "f1")
    rows = np.flatnonzero(f1_N < _WRONG_F1).tolist()  # NaN, which means no score, is not below
    majority_answers = {
        row: Counter(predictions.examples.answers[row] for predictions in answers).most_common(1)[0] for row in rows
    }
    rows.sort(key=lambda row: (f1_N[row], -majority_answers[row][1], row))
    return [
        WrongAnswer(
            row,
            first.gold_answers[row] if first.gold_answers else "",
            majority_answers[row][0],
            majority_answers[row][1],
            len(answers),
            score=float(f1_N[row]),
        )
        for row in rows[:MAX_ERRORS]
    ]


def certainties(answers: Sequence[Predictions]) -> np.ndarray | None:
    """Stack the probabilities of each seed's predictions, float64, shape (S, R); None if a seed kept none."""
    confidences = [answer.examples.confidences for answer in answers]
    predicted = [answer.examples.predicted for answer in answers]
    if any(len(own) != len(labels) for own, labels in zip(confidences, predicted, strict=True)):
        return None
    return np.stack(confidences).astype(np.float64)


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """A word with its predicted tag and its gold tag.

    Attributes:
        colors: the color indices of the predicted and of the gold tag; None for the tag ``O``.
    """

    word: str
    predicted: str
    gold: str
    colors: tuple[int | None, int | None]

    @property
    def is_right(self) -> bool:
        """Whether the predicted tag is the gold tag."""
        return self.predicted == self.gold


@dataclass(frozen=True, slots=True)
class WrongSentence:
    """A sentence with wrong tags.

    Attributes:
        row: the index of the sentence in the kept predictions.
        predicted: the tag that most seeds predict for each word.
    """

    row: int
    predicted: tuple[int, ...]
    num_wrong: int


def worst_sentences(answers: Sequence[Predictions]) -> list[WrongSentence]:
    """Select the sentences with the most certain wrong tags, most certain first.

    The certainty is the sum of the probabilities of all wrong tags, over words and seeds. If probabilities were not
    kept, the certainty is the number of wrong tags.
    """
    examples = answers[0].examples
    predicted_SR = np.stack([predictions.examples.predicted for predictions in answers])
    weights_SR = certainties(answers)
    wrong_SR = (predicted_SR != examples.gold) * (1.0 if weights_SR is None else weights_SR)
    sums = np.concatenate([[0.0], np.cumsum(wrong_SR.sum(0))])
    certainty_N = sums[examples.offsets[1:]] - sums[examples.offsets[:-1]]
    certainty_N = np.where(np.diff(examples.offsets) > MAX_WORDS, 0.0, certainty_N)
    sentences: list[WrongSentence] = []
    for row in np.argsort(-certainty_N, kind="stable").tolist():
        if certainty_N[row] <= 0 or len(sentences) == MAX_ERRORS:
            break
        start, stop = int(examples.offsets[row]), int(examples.offsets[row + 1])
        tags = [_most_frequent(predicted_SR[:, place]) for place in range(start, stop)]
        num_wrong = sum(tag != gold for tag, gold in zip(tags, examples.gold[start:stop].tolist(), strict=True))
        if num_wrong:
            sentences.append(WrongSentence(row, tuple(tags), num_wrong))
    return sentences


def tagged_words(predictions: Predictions, sentence: WrongSentence, words: Sequence[str]) -> list[TaggedWord]:
    """Return the words of a sentence with their tags."""
    examples = predictions.examples
    gold = examples.gold[examples.offsets[sentence.row] : examples.offsets[sentence.row + 1]].tolist()
    colors = label_colors(examples.labels)
    return [
        TaggedWord(word, examples.labels[tag], examples.labels[right], (colors[tag], colors[right]))
        for word, tag, right in zip(words, sentence.predicted, gold, strict=True)
    ]


def label_colors(labels: Sequence[str]) -> list[int | None]:
    """Return a color index for each tag, which is the same for ``B-person`` and ``I-person``; None for ``O``."""
    kinds: dict[str, int] = {}
    return [None if label == _OUTSIDE else kinds.setdefault(_kind(label), len(kinds)) for label in labels]


def _kind(label: str) -> str:
    """Return the kind of a tag: ``person`` for ``B-person``."""
    return label[2:] if label[1:2] == "-" and label[0] in _PREFIXES else label


def _most_frequent(tags_S: np.ndarray) -> int:
    return int(np.bincount(tags_S).argmax())


@dataclass(frozen=True, slots=True)
class ExampleText:
    """The input of one example.

    Attributes:
        content: a text, a pair of texts, the words of a sentence, or a question, its passage and earlier turns.
        gold_start: the index in the passage at which the gold answer starts; None if there is no answer or its
            position is unknown.
    """

    content: tuple[str, ...]
    gold_start: int | None = None


@dataclass(frozen=True, slots=True)
class TextLookup:
    """The texts of some examples.

    Attributes:
        missing: the reason why other texts are missing; empty if none are.
    """

    texts: Mapping[int, ExampleText] = field(default_factory=dict)
    missing: str = ""


class Texts(Protocol):
    """Finds the texts of examples; problems are reported in the result, not raised."""

    def find(self, run: Run, predictions: Predictions, keys: Sequence[int]) -> TextLookup:
        """Find the texts of some examples of a run."""
        ...


class NoTexts(Texts):
    """A finder that never returns texts, for reports that must not read task data."""

    @override
    def find(self, run: Run, predictions: Predictions, keys: Sequence[int]) -> TextLookup:
        return TextLookup(missing="the task data were not read for this page")
