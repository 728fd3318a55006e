"""How well a vocabulary fits a text: the number of pieces per word, and whether it keeps case."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import WordFinder

#: Number of words to read, and the number below which there is no estimate.
_MAX_WORDS, _MIN_WORDS = 5_000, 100
_WORD = re.compile(r"[^\W\d_]+")
#: Letters of scripts that are written without spaces between words: Thai to Myanmar, Khmer, and Chinese and Japanese.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")


def pieces_per_word(tokenizer: Tokenizer, texts: Iterable[str]) -> float | None:
    """Return the mean number of pieces of a word; None if the texts have fewer than 100 words.

    A word is a run of letters. Words in scripts without spaces are left out, because they are not separated there.
    """
    words = pieces = 0
    for text in texts:
        spans = [match.span() for match in _WORD.finditer(text) if not _UNSPACED.search(match[0])]
        if not spans:
            continue
        starts_T, ends_T = tokenizer.encode(text).offsets.T
        starts_W, ends_W = np.array(spans).T
        # The offsets are monotone: a word's pieces begin before its end, and end after its start.
        pieces += int((np.searchsorted(starts_T, ends_W) - np.searchsorted(ends_T, starts_W, side="right")).sum())
        words += len(spans)
        if words >= _MAX_WORDS:
            break
    return pieces / words if words >= _MIN_WORDS else None


def ignores_case(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer gives a letter and its capital the same pieces."""
    return WordFinder(tokenizer, ()).folds_case
