"""The evidence that each word provides for an answer, computed by leave-one-out.

The run answers the text once without each word. The effect of a word is the score with it minus the score without it
(Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", who use a relative
difference of log-likelihoods). The method works for every encoder and head, and a reader can reproduce an effect by
deleting the word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.base import Tokenizer

TextField = Literal["text", "text_pair"]
#: Scores each example: by the probability of the answer, or by the answer itself if it is a number.
Score = Callable[[Sequence[TextExample]], Sequence[float]]

#: Maximum number of words in a text with evidence, since each word needs one pass over the text.
MAX_WORDS = 400
_WORD = re.compile(r"\S+")
_LONGEST_WORD = 24  # characters; a longer stretch without spaces is probably in a script without spaces
_BATCH_TEXTS = 32  # texts answered between two checks of the time


@dataclass(frozen=True, slots=True)
class WordEvidence:
    """The effect of one word.

    Attributes:
        field: the text that contains the word.
        start: index of its first character.
        end: index after its last character.
        word: the word.
        effect: the score with the word minus the score without it.
    """

    field: TextField
    start: int
    end: int
    word: str
    effect: float


class NoEvidence(Exception):
    """The evidence cannot be computed: the text has too many words, or the time is up; the message says which."""


def leave_one_out(
    example: TextExample, score: Score, tokenizer: Tokenizer, *, is_over: Callable[[], bool]
) -> tuple[WordEvidence, ...]:
    """Measure the effect of each word in a text or a pair, in text order.

    Args:
        tokenizer: splits text without spaces into tokens, which then count as words.
        is_over: returns whether the time is up; the work is then abandoned.

    Raises:
        NoEvidence: the text has more than ``MAX_WORDS`` words, or the time is up.
    """
    places: list[tuple[TextField, int, int]] = [
        (field, start, end) for field, text in _texts(example) for start, end in find_words(text, tokenizer)
    ]
    if len(places) > MAX_WORDS:
        raise NoEvidence(f"the text has {len(places):,} words, more than the maximum of {MAX_WORDS}")
    (full_score,) = score([example])
    scores: list[float] = []
    for first in range(0, len(places), _BATCH_TEXTS):
        if is_over():
            raise NoEvidence(f"the time was up after {len(scores)} of {len(places)} words")
        scores += score([_without(example, *place) for place in places[first : first + _BATCH_TEXTS]])
    texts = dict(_texts(example))
    return tuple(
        WordEvidence(field, start, end, texts[field][start:end], full_score - score_without)
        for (field, start, end), score_without in zip(places, scores, strict=True)
    )


def find_words(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    """Yield the character spans of a text's words, or of its tokens where it has no spaces."""
    for match in _WORD.finditer(text):
        if len(match[0]) <= _LONGEST_WORD:
            yield match.span()
            continue
        offsets = tokenizer.encode(match[0]).offsets.tolist()
        yield from ((match.start() + start, match.start() + end) for start, end in offsets if start < end)


def _texts(example: TextExample) -> list[tuple[TextField, str]]:
    pair: list[tuple[TextField, str]] = [] if example.text_pair is None else [("text_pair", example.text_pair)]
    return [("text", example.text), *pair]


def _without(example: TextExample, field: TextField, start: int, end: int) -> TextExample:
    text = dict(_texts(example))[field]
    rest = text[:start] + text[end:]
    return replace(example, text=rest) if field == "text" else replace(example, text_pair=rest)
