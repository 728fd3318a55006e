"""Text preparation for the tokenizer libraries, and the conversion of their character spans to our offsets."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

_SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which have no UTF-8 form, with U+FFFD; character offsets do not change."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def trim_spans(text: str, spans: Sequence[tuple[int, int]], *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Remove white space from the beginning and end of spans; int32, shape (n, 2).

    A span with only white space becomes empty, at its end: the position where the next word begins.

    Args:
        spans: spans of the text's tokens, shape (n, 2).
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


def extend_spans(text: str, spans: np.ndarray, *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Make spans monotone and extend them over visible characters next to a token; int32, shape (n, 2).

    Normalization drops accents and merges characters, so some characters between two tokens may be in no span. They
    are added to the token before them, or, if they follow white space, to the token after them.

    Args:
        spans: spans of the text's tokens, int32, shape (n, 2).
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
