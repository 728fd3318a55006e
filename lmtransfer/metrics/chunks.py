"""Precision, recall and F1 of chunks (named entities, phrases) that are written as a tag a word.

Sources: Tjong Kim Sang and Buchholz, "Introduction to the CoNLL-2000 Shared Task: Chunking" (2000) and its conlleval;
Nakayama, seqeval (2018), default mode. A chunk is right if its first word, its last word and its kind are.

Shape legend: K kinds of chunks, W words of a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lmtransfer.errors import DataError
from lmtransfer.metrics.base import check_seen

OUTSIDE = "O"
_FIRST = "BSU"  # S, and U of BILOU: a chunk of one word
_LAST = "ESUL"
_PREFIXES = "BIESLU"


class Chunk(NamedTuple):
    """Words ``start`` to ``stop`` (exclusive) of a sentence; ``kind`` is empty where tags have none."""

    kind: str
    start: int
    stop: int


def split_tag(tag: str) -> tuple[str, str]:
    """A tag's prefix (one of B I E S L U, or O) and its kind: "B-PER" is ("B", "PER").

    Raises:
        DataError: it is no such tag.
    """
    prefix, dash, kind = tag.partition("-")
    if tag == OUTSIDE or (len(prefix) == 1 and prefix in _PREFIXES and bool(dash) == bool(kind)):
        return prefix, kind
    raise DataError(
        f"tag {tag!r} does not mark a chunk: allowed are O, and B, I, E, S (or L, U) with or without a kind, as in "
        "B-PER; for tags of words, such as parts of speech, score accuracy"
    )


def find_chunks(tags: Sequence[str]) -> list[Chunk]:
    """The chunks of one sentence, in order, from tags in BIO (IOB2), IOB1, BIOES or BILOU.

    One reading serves them all, also where a model's tags fit none: a chunk ends before O, and before a word that
    starts another one; a word does so after O, after E, L, S or U, by its own B, S or U, or by another kind than
    the word's before. So I-PER after O or I-LOC starts a chunk, and B-PER I-LOC are two.

    Args:
        tags: of shape (W,).

    Raises:
        DataError: something is no tag.
    """
    return _chunks([split_tag(tag) for tag in tags])


def _chunks(parts: Sequence[tuple[str, str]]) -> list[Chunk]:
    chunks: list[Chunk] = []
    start, last_prefix, last_kind = 0, OUTSIDE, ""
    for place, (prefix, kind) in enumerate([*parts, (OUTSIDE, "")]):
        ended = prefix == OUTSIDE or prefix in _FIRST or last_prefix in _LAST or kind != last_kind
        if ended and last_prefix != OUTSIDE:
            chunks.append(Chunk(last_kind, start, place))
        if ended or last_prefix == OUTSIDE:
            start = place
        last_prefix, last_kind = prefix, kind
    return chunks


class ChunkScores:
    """Sums over sentences from which precision, recall and F1 follow; they stream and merge as metrics do.

    Args:
        labels: the task's tags in the order of their indices.

    Raises:
        DataError: a label is no tag of a chunk.

    Attributes:
        kinds: the kinds of chunks in alphabetic order.
    """

    def __init__(self, *, labels: Sequence[str]) -> None:
        self._parts = [split_tag(label) for label in labels]
        self.kinds = sorted({kind for prefix, kind in self._parts if prefix != OUTSIDE})
        self._row = {kind: row for row, kind in enumerate(self.kinds)}
        self._sentences = 0.0
        self._counts_K3 = np.zeros((len(self.kinds), 3))  # right, predicted, gold

    def update(self, predictions: Sequence[int] | np.ndarray, targets: Sequence[int] | np.ndarray) -> None:
        """Count the chunks of one sentence.

        Args:
            predictions: tag indices of shape (W,).
            targets: the right ones, of shape (W,).

        Raises:
            DataError: the lengths differ, or an index has no label (-1, an unscored word, included).
        """
        if len(predictions) != len(targets):
            raise DataError(f"a sentence of {len(targets)} gold tags has {len(predictions)} predicted ones")
        predicted, gold = set(self._read(predictions)), set(self._read(targets))
        for column, chunks in enumerate((predicted & gold, predicted, gold)):
            for chunk in chunks:
                self._counts_K3[self._row[chunk.kind], column] += 1
        self._sentences += 1

    def counts(
        self, predictions: Sequence[int] | np.ndarray, targets: Sequence[int] | np.ndarray
    ) -> tuple[int, int, int]:
        """Right, predicted and gold chunks of one sentence, as ``update`` counts them; nothing is added up."""
        predicted, gold = set(self._read(predictions)), set(self._read(targets))
        return len(predicted & gold), len(predicted), len(gold)

    def _read(self, tags: Sequence[int] | np.ndarray) -> list[Chunk]:
        for tag in tags:
            if not 0 <= tag < len(self._parts):
                raise DataError(f"tag index {tag} has no label: there are 0 to {len(self._parts) - 1}")
        return _chunks([self._parts[tag] for tag in tags])

    def state(self) -> np.ndarray:
        """Number of sentences, then right, predicted and gold chunks kind by kind, float64, shape (1 + 3 * K,)."""
        return np.concatenate([[self._sentences], self._counts_K3.ravel()])

    def merge(self, state: np.ndarray) -> None:
        """Add what another one with the same labels has counted."""
        self._sentences += float(state[0])
        self._counts_K3 += state[1:].reshape(self._counts_K3.shape)

    def compute(self) -> dict[str, float]:
        """``precision``, ``recall`` and ``f1`` over all chunks, then ``<kind>_f1`` each (none for chunks without kind).

        All 0 to 1, and 0 where nothing was predicted or nothing is to be found.

        Raises:
            ValueError: nothing was seen.
        """
        check_seen("chunk f1", self._sentences)
        right, predicted, gold = self._counts_K3.sum(0).tolist()
        scores = {
            "precision": right / predicted if predicted else 0.0,
            "recall": right / gold if gold else 0.0,
            "f1": _f1(right, predicted, gold),
        }
        for kind, counts in zip(self.kinds, self._counts_K3.tolist(), strict=True):
            if kind:
                scores[f"{kind}_f1"] = _f1(*counts)
        return scores


def _f1(right: float, predicted: float, gold: float) -> float:
    return 2 * right / (predicted + gold) if predicted + gold else 0.0


def chunk_scores(answers: Iterable[Sequence[str]], references: Iterable[Sequence[str]]) -> dict[str, float]:
    """:class:`ChunkScores` of sentences whose tags are given by name.

    Args:
        answers: predicted tags, a sentence each of shape (W,).
        references: the right ones, sentence by sentence.

    Raises:
        DataError: not as many sentences or tags, or something is no tag of a chunk.
    """
    predicted, gold = list(answers), list(references)
    if len(predicted) != len(gold):
        raise DataError(f"{len(gold)} sentences of gold tags have {len(predicted)} predicted ones")
    labels = sorted({tag for sentence in [*predicted, *gold] for tag in sentence})
    index = {label: place for place, label in enumerate(labels)}
    scores = ChunkScores(labels=labels)
    for ours, theirs in zip(predicted, gold, strict=True):
        scores.update([index[tag] for tag in ours], [index[tag] for tag in theirs])
    return scores.compute()
