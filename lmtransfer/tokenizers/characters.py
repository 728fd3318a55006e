"""Words as character ids, as in ELMo (allenai/bilm-tf, bilm/data.py).

There are 262 ids. 0 is not a character. Byte b of the UTF-8 form is b + 1. 257 and 258 mark the beginning and end of a
sentence, 259 and 260 mark the beginning and end of a word, and 261 is filler. A word has 50 ids: beginning, bytes (the
first 48), end, and filler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

MAX_CHARACTERS: Final = 50
_SENTENCE_BEGIN, _SENTENCE_END, _WORD_BEGIN, _WORD_END, _FILLING = 257, 258, 259, 260, 261


def character_ids(words: Sequence[str]) -> np.ndarray:
    """Return the character ids of words, int16, shape (n, 50)."""
    return _rows([byte + 1 for byte in word.encode("utf-8", "replace")] for word in words)


def boundary_character_ids() -> np.ndarray:
    """Return the character ids of the marks for the beginning and end of a sentence, int16, shape (2, 50)."""
    return _rows([[_SENTENCE_BEGIN], [_SENTENCE_END]])


def _rows(words: Iterable[Sequence[int]]) -> np.ndarray:
    rows = [[_WORD_BEGIN, *word[: MAX_CHARACTERS - 2], _WORD_END] for word in words]
    ids = np.full((len(rows), MAX_CHARACTERS), _FILLING, dtype=np.int16)
    for row, characters in zip(ids, rows, strict=True):
        row[: len(characters)] = characters
    return ids
