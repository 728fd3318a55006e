"""The evidence that each word gives for an answer, by leave-one-out.

The run answers the text once without each word. The effect of a word is the score with it minus the score without it
(Li, Monroe and Jurafsky 2016, "Understanding Neural Networks through Representation Erasure", who use a relative
difference of log-likelihoods). The method works for every encoder and head, and a reader can reproduce an effect by
deleting the word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tokenizers.base import Tokenizer

Field = Literal["text", "text_pair"]
#: Scores each example: by the probability of the answer, or by the answer itself if it is a number.
Score = Callable[[Sequence[TextExample]], Sequence[float]]

#: Maximum number of words in a text with evidence, since each word needs one pass over the text.
MOST_WORDS = 400
_WORD = re.compile(r"\S+")
_LONGEST_WORD = 24  # in characters: a longer run without a space is probably from a script without spaces
_TOGETHER = 32  # texts answered between two checks of the time


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

    field: Field
    start: int
    end: int
    word: str
    effect: float

    def plain(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)


class TooLong(Exception):
    """The text has too many words, or the time is up; the message says which, as part of a sentence."""


def leave_one_out(
    example: TextExample, score: Score, tokenizer: Tokenizer, *, is_over: Callable[[], bool]
) -> tuple[WordEvidence, ...]:
    """Measure the effect of each word in a text or a pair, in text order.

    Args:
        tokenizer: splits text without spaces into tokens, which then count as words.
        is_over: whether the time is up, so that the work is abandoned.

    Raises:
        TooLong: the text has more than ``MOST_WORDS`` words, or the time is up.
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
    """Yield the character spans of a text's words, or of its tokens where it has no spaces."""
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
