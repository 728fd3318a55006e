"""Text for the libraries' tokenizers, and from their character spans those that a ``Tokenizer`` promises."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

_SURROGATES = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which have no UTF-8 form; one character for one keeps offsets."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def trimmed_spans(text: str, spans: Sequence[tuple[int, int]], *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Spans that neither begin nor end with what counts as white space, int32, shape (n, 2).

    A span of nothing else is empty, at its own end: where the word begins that the space stands before.

    Args:
        text: what was encoded.
        spans: of its tokens, shape (n, 2).
        is_blank: whether a character counts as white space.
    """
    trimmed = []
    for start, end in spans:
        while start < end and is_blank(text[start]):
            start += 1
        while start < end and is_blank(text[end - 1]):
            end -= 1
        trimmed.append((start, end))
    return np.array(trimmed, dtype=np.int32).reshape(-1, 2)


def covering_spans(text: str, spans: np.ndarray, *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Monotone spans that let no visible character out which stands beside a token, int32, shape (n, 2).

    Normalisation drops accents, and makes one character of several; what a library then leaves between two tokens
    belongs to the one before it, or, behind white space, to the one after it.

    Args:
        text: what was encoded.
        spans: of its tokens, int32, shape (n, 2).
        is_blank: whether a character counts as white space.
    """
    spans = np.maximum.accumulate(spans, axis=0)
    covered_to = 0
    for i in range(len(spans)):
        start = int(spans[i, 0])
        if covered_to < start:
            stop = covered_to
            while i and stop < start and _is_visible(text[stop], is_blank):
                stop += 1
            while start > stop and _is_visible(text[start - 1], is_blank):
                start -= 1
            if i:
                spans[i - 1, 1] = max(spans[i - 1, 1], stop)
            if spans[i, 0] < spans[i, 1]:
                spans[i, 0] = start
        covered_to = max(covered_to, int(spans[i, 1]))
    while len(spans) and covered_to < len(text) and _is_visible(text[covered_to], is_blank):
        covered_to += 1
        spans[-1, 1] = covered_to
    return np.maximum.accumulate(spans, axis=0)


def _is_visible(character: str, is_blank: Callable[[str], bool]) -> bool:
    if character.isalnum():
        return True
    category = unicodedata.category(character)
    return category == "Mn" or (category[0] not in "CZ" and not is_blank(character))
