"""Tagged sentences: the tag that most seeds give each word, and the gold tag where this tag is wrong.

Shape legend: S seeds, N sentences, R words of all sentences, W words of one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.reporting.page.wrong_answers import MAX_ERRORS, certainties
from lmtransfer.tasks.metrics.scored_examples import Predictions

#: The tag of words outside spans, and the letters before the kind of a span (see ``metrics.chunks``).
_OUTSIDE, _PREFIXES = "O", "BIESLU"
#: Maximum number of words in a sentence; longer sentences are not shown.
MAX_WORDS = 60


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """One word.

    Attributes:
        word: the word.
        predicted: the tag that most seeds give.
        gold: the gold tag.
        colors: color numbers of the predicted tag and the gold tag; None for no tag (``O``).
    """

    word: str
    predicted: str
    gold: str
    colors: tuple[int | None, int | None]

    @property
    def is_right(self) -> bool:
        """Whether the tag is the gold tag."""
        return self.predicted == self.gold


@dataclass(frozen=True, slots=True)
class WrongSentence:
    """The tags of one sentence.

    Attributes:
        row: index of the sentence in the kept answers.
        predicted: the label that most seeds give each word, int64, shape (W,).
        num_wrong: number of wrongly tagged words.
    """

    row: int
    predicted: tuple[int, ...]
    num_wrong: int


def worst_sentences(answers: Sequence[Predictions]) -> list[WrongSentence]:
    """Select the sentences with the most certain wrong tags, most certain first.

    The certainty is the sum of the wrong tags' probabilities over all seeds, or their number if probabilities were not
    kept.

    Args:
        answers: the answers of each seed to the same sentences, of kind tagging.
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
    """Return the words of a sentence with their tags.

    Args:
        predictions: the answers of one seed, which provide the gold tags.

    Raises:
        ValueError: the numbers of words and of tags differ.
    """
    examples = predictions.examples
    gold = examples.gold[examples.offsets[sentence.row] : examples.offsets[sentence.row + 1]].tolist()
    colors = label_colors(examples.labels)
    return [
        TaggedWord(word, examples.labels[tag], examples.labels[right], (colors[tag], colors[right]))
        for word, tag, right in zip(words, sentence.predicted, gold, strict=True)
    ]


def label_colors(labels: Sequence[str]) -> list[int | None]:
    """Number the colors of tags, one per kind, so that ``B-person`` and ``I-person`` look alike."""
    kinds: dict[str, int] = {}
    return [None if label == _OUTSIDE else kinds.setdefault(_kind(label), len(kinds)) for label in labels]


def _kind(label: str) -> str:
    """Return the kind of a tag: ``person`` for ``B-person``."""
    return label[2:] if label[1:2] == "-" and label[0] in _PREFIXES else label


def _most_frequent(tags_S: np.ndarray) -> int:
    """Return the tag that most seeds give, or the lowest on a tie."""
    return int(np.bincount(tags_S).argmax())
