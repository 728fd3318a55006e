"""Precision, recall and F1 of chunks (named entities, phrases) that are encoded as one tag per word.

Sources: Tjong Kim Sang and Buchholz, "Introduction to the CoNLL-2000 Shared Task: Chunking" (2000) and its conlleval;
Nakayama, seqeval (2018), default mode. A chunk is correct if its first word, last word and kind are correct.

Shape legend: W words of a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmtransfer.errors import DataError

OUTSIDE = "O"
_FIRST = "BSU"  # S (and U of BILOU) marks a single-word chunk
_LAST = "ESUL"
_PREFIXES = "BIESLU"


class Chunk(NamedTuple):
    """Words ``start`` to ``stop`` (exclusive) of a sentence; ``kind`` is empty if tags have no kind."""

    kind: str
    start: int
    stop: int


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix (one of B I E S L U, or O) and its kind: "B-PER" is ("B", "PER").

    Raises:
        DataError: the text is not such a tag.
    """
    prefix, dash, kind = tag.partition("-")
    if tag == OUTSIDE or (len(prefix) == 1 and prefix in _PREFIXES and bool(dash) == bool(kind)):
        return prefix, kind
    raise DataError(
        f"tag {tag!r} does not mark a chunk: the allowed tags are O, and B, I, E, S (or L, U) with or without a kind, "
        "as in B-PER; for tags of words, such as parts of speech, use the metric accuracy"
    )


class Chunks:
    """Finds chunks in sentences whose tags are indices into labels.

    Tags are BIO (IOB2), IOB1, BIOES or BILOU. The same rules apply to all schemes, and to predicted tags that violate
    their scheme. A chunk ends before O, and before a word that starts another chunk. A word starts a chunk if the
    preceding tag is O, E, L, S or U, if its own tag is B, S or U, or if its kind differs from that of the preceding
    word. For example, I-PER after O or I-LOC starts a chunk, and B-PER I-LOC are two chunks.
    """

    def __init__(self, *, labels: Sequence[str]) -> None:
        self._parts = [split_tag(label) for label in labels]

    def of(self, tags: Sequence[int] | np.ndarray) -> list[Chunk]:
        """Find the chunks of one sentence, in order.

        Raises:
            DataError: an index has no label; this includes -1, which marks an unscored word.
        """
        for tag in tags:
            if not 0 <= tag < len(self._parts):
                raise DataError(f"tag index {tag} has no label: the labels are 0 to {len(self._parts) - 1}")
        chunks: list[Chunk] = []
        start, last_prefix, last_kind = 0, OUTSIDE, ""
        for place, (prefix, kind) in enumerate([*(self._parts[tag] for tag in tags), (OUTSIDE, "")]):
            is_end = prefix == OUTSIDE or prefix in _FIRST or last_prefix in _LAST or kind != last_kind
            if is_end and last_prefix != OUTSIDE:
                chunks.append(Chunk(last_kind, start, place))
            if is_end or last_prefix == OUTSIDE:
                start = place
            last_prefix, last_kind = prefix, kind
        return chunks

    def counts(
        self, predictions: Sequence[int] | np.ndarray, targets: Sequence[int] | np.ndarray
    ) -> tuple[int, int, int]:
        """Count the correct, predicted and gold chunks of one sentence."""
        if len(predictions) != len(targets):
            raise DataError(f"a sentence has {len(targets)} gold tags, but {len(predictions)} predicted tags")
        predicted, gold = set(self.of(predictions)), set(self.of(targets))
        return len(predicted & gold), len(predicted), len(gold)


def chunk_scores(num_right: float, num_predicted: float, num_gold: float) -> dict[str, float]:
    """Return ``f1``, ``precision`` and ``recall`` of chunks, 0 to 1; a score with denominator 0 is 0."""
    return {
        "f1": 2 * num_right / (num_predicted + num_gold) if num_predicted + num_gold else 0.0,
        "precision": num_right / num_predicted if num_predicted else 0.0,
        "recall": num_right / num_gold if num_gold else 0.0,
    }
