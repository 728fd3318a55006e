"""The shingles of a text: its sequences of consecutive words as 64-bit hashes."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from lmtransfer.data.corpora.split import text_hash

_WORD = re.compile(r"\w+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


@lru_cache(maxsize=1 << 18)
def _word_hash(word: str) -> int:
    return text_hash(word)


def word_hashes(text: str) -> np.ndarray:
    """Return the hash of each word of a text, uint64, shape (words,).

    A word is a case-insensitive sequence of letters, digits and underscores. Punctuation and line ends are ignored. (A
    language without spaces has very long words, so only copies of whole clauses are found in it.)
    """
    words = _WORD.findall(text.casefold())
    return np.fromiter(map(_word_hash, words), dtype=np.uint64, count=len(words))


def shingles(hashes: np.ndarray, num_words: int) -> np.ndarray:
    """Return the distinct sequences of ``num_words`` consecutive words, as sorted 64-bit hashes.

    Args:
        hashes: the words (see ``word_hashes``).
        num_words: words per shingle. A shorter text is a single shingle; a text without words has none.

    Returns:
        uint64, shape (distinct shingles,). Two distinct shingles have the same hash with a probability of 2^-64.
    """
    length = min(num_words, len(hashes))
    if length == 0:
        return hashes
    mixed = np.full(len(hashes) - length + 1, length, dtype=np.uint64)
    for place in range(length):
        mixed = (mixed ^ hashes[place : place + len(mixed)]) * _MULTIPLIER
        mixed ^= mixed >> _SHIFT
    return np.unique(mixed)


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Jaccard similarity of two sets: the size of their intersection divided by the size of their union.

    Args:
        first: sorted, without duplicates.
        second: sorted, without duplicates.
    """
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / (len(first) + len(second) - common) if common else 0.0
