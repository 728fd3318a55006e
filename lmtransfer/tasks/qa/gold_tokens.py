"""The tokens of a passage that form a gold answer, found by their character offsets.

Shape legend: n tokens of a passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample

#: The tokens for no answer.
NOWHERE = (-1, -1)


class GoldTokens(NamedTuple):
    """The tokens of the answer to train on, as indices into the passage; -1 and -1 for no answer."""

    start: int
    end: int
    reachable: bool

    @classmethod
    def of(
        cls, example: QuestionExample, spans: np.ndarray, windows: Sequence[tuple[int, int]], *, longest: int
    ) -> GoldTokens:
        """Return the first gold answer that tokens of one window express exactly, or else tokens that cover the first.

        Args:
            example: the question; if it has another kind of answer, its first gold answer is the evidence.
            spans: character span of each passage token, shape (n, 2).
            windows: windows of the passage, each from its first token to one past its last.
            longest: maximum number of tokens in an answer.
        """
        gold_answers = example.answers or ()
        if not gold_answers or gold_answers[0].start is None:
            return cls(*NOWHERE, reachable=True)
        nearest: tuple[int, int] | None = None
        for gold in (
            gold_answers if example.kind is None else gold_answers[:1]
        ):  # another kind of answer: only its evidence
            match = _exact(gold, example.passage, spans)
            if match is None:
                continue
            tokens, exact = match
            answer = cls(*tokens, reachable=True)
            if exact and tokens[1] - tokens[0] < longest and any(map(answer.is_inside, windows)):
                return answer
            nearest = nearest or tokens
        return cls(*(nearest or NOWHERE), reachable=example.kind is not None)

    def is_inside(self, window: tuple[int, int]) -> bool:
        """Whether all tokens are in a window, which goes from its first token to one past its last."""
        return 0 <= window[0] <= self.start and self.end < window[1]


def _exact(gold: GoldSpan, passage: str, spans: np.ndarray) -> tuple[tuple[int, int], bool] | None:
    """Return a gold answer's tokens, and whether they express it exactly; None if it has no tokens."""
    if gold.start is None or gold.end is None:
        return None
    answer = _strip(passage, gold.start, gold.end)
    tokens = covering_tokens(spans, *answer)
    return None if tokens is None else (tokens, text_of_tokens(passage, spans, *tokens) == answer)


def covering_tokens(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last token that share a character with a span of the text; None if no token does.

    Args:
        spans: character span of each token, shape (n, 2).
        start: first character of the span.
        end: one past the last character.
    """
    sharing = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 0] < spans[:, 1]))
    return (int(sharing[0]), int(sharing[-1])) if len(sharing) else None


def text_of_tokens(passage: str, spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Return the characters from token ``start`` to token ``end`` inclusive, without surrounding white space.

    Args:
        spans: character span of each passage token, shape (n, 2).

    Returns:
        First character, and one past the last.
    """
    return _strip(passage, int(spans[start, 0]), int(spans[end, 1]))


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())
