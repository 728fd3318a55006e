"""The evidence of each word for an answer, by leave-one-out.

The run answers the text once without each word. The effect of a word is the score with it less the score without it
(Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", there as a relative
difference of log-likelihoods). It works for every encoder and head, and a reader can repeat it by deleting the word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.base import Tokenizer

Field = Literal["text", "text_pair"]
#: Gives the score of each example: the probability of the answer, or the number that is the answer.
Score = Callable[[Sequence[TextExample]], Sequence[float]]

#: Longer texts get no evidence: each word needs one pass over the text.
MOST_WORDS = 400
_WORD = re.compile(r"\S+")
_LONGEST_WORD = 24  # characters: what is longer without a space is probably written without spaces
_TOGETHER = 32  # texts that are answered between two looks at the clock


@dataclass(frozen=True, slots=True)
class WordEvidence:
    """The effect of one word.

    Attributes:
        field: the text that the word is in.
        start: its first character.
        end: one past its last character.
        word: the word.
        effect: the score with the word less the score without it.
    """

    field: Field
    start: int
    end: int
    word: str
    effect: float

    def plain(self) -> dict[str, Any]:
        """The attributes as JSON."""
        return asdict(self)


class TooLong(Exception):
    """The text has too many words, or the time is over; the message says which, as part of a sentence."""


def leave_one_out(
    example: TextExample, score: Score, tokenizer: Tokenizer, *, is_over: Callable[[], bool]
) -> tuple[WordEvidence, ...]:
    """The effect of each word of a text or a pair, in the order of the text.

    Args:
        tokenizer: cuts text without spaces into tokens, which then count as words.
        is_over: whether the time is over; the work is then given up.

    Raises:
        TooLong: the text has more than ``MOST_WORDS`` words, or the time is over.
    """
    places: list[tuple[Field, int, int]] = [
        (field, start, end) for field, text in _texts(example) for start, end in words_of(text, tokenizer)
    ]
    if len(places) > MOST_WORDS:
        raise TooLong(f"the text has {len(places):,} words, and evidence is given for up to {MOST_WORDS}")
    (whole,) = score([example])
    without: list[float] = []
    for first in range(0, len(places), _TOGETHER):
        if is_over():
            raise TooLong(f"the time is over after {len(without)} of {len(places)} words")
        without += score([_without(example, *place) for place in places[first : first + _TOGETHER]])
    texts = dict(_texts(example))
    return tuple(
        WordEvidence(field, start, end, texts[field][start:end], whole - rest)
        for (field, start, end), rest in zip(places, without, strict=True)
    )


def words_of(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, int]]:
    """The character spans of the words of a text; of the tokens, where a text is written without spaces."""
    for match in _WORD.finditer(text):
        if len(match[0]) <= _LONGEST_WORD:
            yield match.span()
            continue
        offsets = tokenizer.encode(match[0]).offsets.tolist()
        yield from ((match.start() + start, match.start() + end) for start, end in offsets if start < end)


def _texts(example: TextExample) -> list[tuple[Field, str]]:
    pair: list[tuple[Field, str]] = [] if example.text_pair is None else [("text_pair", example.text_pair)]
    return [("text", example.text), *pair]


def _without(example: TextExample, field: Field, start: int, end: int) -> TextExample:
    text = dict(_texts(example))[field]
    rest = text[:start] + text[end:]
    return replace(example, text=rest) if field == "text" else replace(example, text_pair=rest)
