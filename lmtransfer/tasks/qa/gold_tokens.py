"""Which tokens of a passage are a gold answer, by its characters.

Shape legend: n tokens of a passage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample

#: The tokens of no answer.
NOWHERE = (-1, -1)


class GoldTokens(NamedTuple):
    """The tokens of the answer to train on, counted in the passage; -1 and -1 for none."""

    start: int
    end: int
    reachable: bool

    @classmethod
    def of(
        cls, example: QuestionExample, spans: np.ndarray, windows: Sequence[tuple[int, int]], *, longest: int
    ) -> GoldTokens:
        """The first gold answer that can be given exactly, else the nearest tokens to the first.

        Args:
            example: the question; of a kind of its own, its gold answer is the evidence.
            spans: character span of each token of the passage, shape (n, 2).
            windows: of the passage, from the first token to one past the last.
            longest: most tokens of an answer that can be given.
        """
        golds = example.answers or ()
        if not golds or golds[0].start is None:
            return cls(*NOWHERE, reachable=True)
        nearest: tuple[int, int] | None = None
        for gold in golds if example.kind is None else golds[:1]:  # of another kind: the evidence
            found = _exact(gold, example.passage, spans)
            if found is None:
                continue
            tokens, exact = found
            answer = cls(*tokens, reachable=True)
            if exact and tokens[1] - tokens[0] < longest and any(map(answer.inside, windows)):
                return answer
            nearest = nearest or tokens
        return cls(*(nearest or NOWHERE), reachable=example.kind is not None)

    def inside(self, window: tuple[int, int]) -> bool:
        """Whether these tokens are all in a window, from its first to one past its last."""
        return 0 <= window[0] <= self.start and self.end < window[1]


def _exact(gold: GoldSpan, passage: str, spans: np.ndarray) -> tuple[tuple[int, int], bool] | None:
    """The tokens of a gold answer, and whether they are exactly that; None where it has no tokens."""
    if gold.start is None or gold.end is None:
        return None
    wanted = _stripped(passage, gold.start, gold.end)
    tokens = covering_tokens(spans, *wanted)
    return None if tokens is None else (tokens, text_of_tokens(passage, spans, *tokens) == wanted)


def covering_tokens(spans: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that share a character with a stretch of text; None where none does.

    Args:
        spans: character span of each token, shape (n, 2).
        start: first character.
        end: one past the last character.
    """
    sharing = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 0] < spans[:, 1]))
    return (int(sharing[0]), int(sharing[-1])) if len(sharing) else None


def text_of_tokens(passage: str, spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The characters from the first of token ``start`` to the last of token ``end``, without white space at the edges.

    Args:
        passage: the text.
        spans: character span of each of its tokens, shape (n, 2).
        start: first token.
        end: last token.

    Returns:
        First character, and one past the last.
    """
    return _stripped(passage, int(spans[start, 0]), int(spans[end, 1]))


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())
