"""Find the span of a text that is closest to a free-text answer."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from lmtransfer.tasks.metrics.answer_text import normalize_answer

_WORD = re.compile(r"\S+")
_PART = re.compile(r"[^\W_]+")
_MAX_PARTS = 8


class _Word(NamedTuple):
    """A word between white space, and the pieces that it can be cut into, with their normalised words.

    Attributes:
        words: normalised words of the whole word.
        all_words: normalised words of all pieces.
        heads: pieces from a first character to the end of the word.
        tails: pieces from the start of the word to one past a last character.
        pieces: pieces from a first character to one past a last character.
    """

    words: tuple[str, ...]
    all_words: frozenset[str]
    heads: tuple[tuple[int, tuple[str, ...]], ...]
    tails: tuple[tuple[int, tuple[str, ...]], ...]
    pieces: tuple[tuple[int, int, tuple[str, ...]], ...]


def closest_span(text: str, answer: str) -> tuple[int, int] | None:
    """Find the span with the highest word F1 against an answer.

    Spans begin and end at the edges of words between white space and, inside a word, at the edges of runs of letters
    and digits, so that *Bob* is found in *Bob's* and *brown* in *brown-haired*. A word of more than eight such runs is
    cut only at the first and the last of them. F1 is ``token_f1`` (lower case, no punctuation or articles). Of spans
    with equal F1 the shortest wins, then the first. Time is linear in the length of the text for an answer of a few
    words, and grows with the product of both lengths for a long answer.

    Extractive systems are trained on CoQA in this way: answers are free text, so the target is the span of the
    annotator's evidence that overlaps most with the answer (Reddy et al., "CoQA" (2019), which defines the best
    extractive answer in this way).

    Args:
        text: the text that contains the span.
        answer: the free-text answer.

    Returns:
        First character, and one past the last; None if the text and the answer have no common word.
    """
    wanted = Counter(normalize_answer(answer).split())
    num_wanted = wanted.total()
    words = [(match.start(), _cut(match.group())) for match in _WORD.finditer(text)]
    best_key: tuple[float, int, int] = (0.0, 0, 0)  # F1, and the keys that break ties
    best: tuple[int, int] | None = None

    def offer(start: int, end: int, common: int, size: int) -> None:
        nonlocal best_key, best
        key = (2 * common / (size + num_wanted), start - end, -start)
        if common and key > best_key:
            best_key, best = key, (start, end)

    # A span whose first or last piece has no wanted word is no better than the shorter span without that piece. A span
    # of n words has F1 2 w / (n + w) at most, so a span of more than w * w words is never better than a single word.
    for place, (begin, first) in enumerate(words):
        if wanted.keys().isdisjoint(first.all_words):
            continue
        for start, end, part in first.pieces:
            offer(begin + start, begin + end, _take(wanted.copy(), part), len(part))
        for start, head in first.heads:
            if wanted.keys().isdisjoint(head):
                continue
            left = wanted.copy()
            common, size = _take(left, head), len(head)
            for further in range(place + 1, len(words)):
                offset, last = words[further]
                if common == num_wanted or 2 * num_wanted / (size + 1 + num_wanted) < best_key[0]:
                    break
                if not wanted.keys().isdisjoint(last.all_words):
                    for end, tail in last.tails:
                        if not wanted.keys().isdisjoint(tail):
                            offer(begin + start, offset + end, common + _take(left.copy(), tail), size + len(tail))
                    common += _take(left, last.words)
                size += len(last.words)
    return best


def _take(left: Counter[str], words: tuple[str, ...]) -> int:
    """Take words from the multiset of remaining words, and return how many of them were in it."""
    taken = 0
    for word in words:
        if left[word] > 0:
            left[word] -= 1
            taken += 1
    return taken


@lru_cache(maxsize=1 << 14)
def _cut(word: str) -> _Word:
    parts = [part.span() for part in _PART.finditer(word)]
    inner = parts if len(parts) <= _MAX_PARTS else [parts[0], parts[-1]]
    starts = sorted({0, *(start for start, _ in inner)})
    ends = sorted({len(word), *(end for _, end in inner)})
    pieces = tuple(
        (start, end, tuple(normalize_answer(word[start:end]).split()))
        for start in starts
        for end in ends
        if start < end
    )
    return _Word(
        words=next(words for start, end, words in pieces if (start, end) == (0, len(word))),
        all_words=frozenset(found for *_, words in pieces for found in words),
        heads=tuple((start, words) for start, end, words in pieces if end == len(word)),
        tails=tuple((end, words) for start, end, words in pieces if start == 0),
        pieces=pieces,
    )
