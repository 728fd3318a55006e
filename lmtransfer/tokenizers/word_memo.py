"""Encoding of text word by word, with the ids of each distinct word computed only once.

A corpus repeats its words so often that looking up their ids is several times as fast as computing them. The result is
the same only if a tokenizer never looks across white space; see the callers of ``WordMemo``. For sentencepiece it is
not worthwhile: unigram sums scores over a whole text, so rounding may depend on the words before, and BPE was as fast
without a memo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from threading import Lock
from typing import Final

import numpy as np
import tokenizers

from lmtransfer.tokenizers.base import replace_surrogates

#: A memo with this many words or characters is cleared, so that it takes about 25 MB at most.
_MOST_WORDS: Final = 1 << 17
_MOST_CHARACTERS: Final = 1 << 22
_TEXTS_AT_ONCE: Final = 2048


class _Places(dict[str, int]):
    """The place of each word in a memo; a word without one gets the next place and is listed in ``new``."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        self.new.append(word)
        place = self[word] = len(self)
        return place


class WordMemo:
    """The ids of the words seen so far.

    Args:
        split: cuts a text into words. A text that must not be cut is a single word.
        encode_words: returns the ids of words, as ``Tokenizer.encode_flat`` does.
    """

    def __init__(
        self,
        *,
        split: Callable[[str], list[str]],
        encode_words: Callable[[list[str]], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        self._split, self._encode_words = split, encode_words
        self._lock = Lock()
        self._clear()

    def _clear(self) -> None:
        self._places = _Places()
        self._ids: np.ndarray = np.zeros(0, np.int32)
        self._ends: np.ndarray = np.zeros(1, np.int64)
        self._num_characters: int = 0

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts as one int32 array, and the number of ids of each text as an int64 array."""
        starts = range(0, max(1, len(texts)), _TEXTS_AT_ONCE)
        tokens, lengths = zip(*(self._encode(texts[start : start + _TEXTS_AT_ONCE]) for start in starts), strict=True)
        return np.concatenate(tokens), np.concatenate(lengths)

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        words = [self._split(text) for text in texts]
        with self._lock:
            ids, ends, places = self._look_up(chain.from_iterable(words))
        starts = ends[places]
        sizes = ends[places + 1] - starts
        stops = np.append(0, np.cumsum(sizes))
        tokens = ids[np.arange(stops[-1]) + np.repeat(starts - stops[:-1], sizes)]
        num_words = np.fromiter(map(len, words), np.int64, len(words))
        return tokens, np.diff(stops[np.cumsum(num_words)], prepend=0)

    def _look_up(self, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ids of all words in the memo, where those of each word end, and the places of ``words``."""
        was_interrupted = bool(self._places.new)
        if was_interrupted or len(self._places) > _MOST_WORDS or self._num_characters > _MOST_CHARACTERS:
            self._clear()
        places = np.fromiter(map(self._places.__getitem__, words), np.int64)
        if new := self._places.new:
            ids, lengths = self._encode_words(new)
            self._ids = np.append(self._ids, ids)
            self._ends = np.append(self._ends, self._ends[-1] + np.cumsum(lengths))
            self._num_characters += sum(map(len, new))
            self._places.new = []  # last, see was_interrupted
        return self._ids, self._ends, places


def part_memo(
    library: tokenizers.Tokenizer,
    cut: Callable[[str], list[str]] | None,
    *,
    spell: Callable[[str], str] = str,
) -> WordMemo:
    """Return a memo for a library tokenizer, of the parts of printable ASCII texts and of whole other texts.

    The library's normalizer takes most of the time. It does little to printable ASCII text, so this text is normalized
    and cut here, and its parts are passed to the library's model.

    Args:
        cut: returns the parts of a printable ASCII text, normalized; None if the library's rules are unknown.
        spell: how a part is spelled in the vocabulary.
    """
    model = library.model

    def is_plain(text: str) -> bool:
        return cut is not None and text.isascii() and text.isprintable()

    def split(text: str) -> list[str]:
        return cut(text) if cut is not None and is_plain(text) else [text]

    def encode_parts(parts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        others = [replace_surrogates(part) for part in parts if not is_plain(part)]
        encodings = iter(library.encode_batch_fast(others, add_special_tokens=False))
        ids = [
            [token.id for token in model.tokenize(spell(part))] if is_plain(part) else next(encodings).ids
            for part in parts
        ]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    return WordMemo(split=split, encode_words=encode_parts)
