"""Spans of whole words as units (SpanBERT)."""

from __future__ import annotations

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.selection import Chosen
from lmtransfer.objectives.corruption.words import random_runs, words_of
from lmtransfer.tokenizers.base import Tokenizer


class Spans:
    """Each unit is a span of whole words of geometric length (Joshi et al. 2020, section 3.1).

    Lengths l have p(l) proportional to ``(1 - stop_prob) ** (l - 1)`` for 1 to ``max_words``: 3.8 words in the mean
    with the published numbers. A span starts at a word that is not hidden yet, and ends before a special token, a
    hidden word, and what would exceed the budget. The first and last token of a row are never hidden, so that each
    span has a token on both sides.

    It gives ``left`` and ``right`` of each hidden token: how many tokens it is from the nearest one on either side that
    is not hidden (spans that touch are one stretch), for the span-boundary objective.

    Args:
        stop_prob: the geometric distribution's p.
        max_words: longest span.

    Raises:
        ConfigError: ``stop_prob`` is no probability above 0, or ``max_words`` less than 1.
    """

    gives: tuple[str, ...] = ("left", "right")

    def __init__(self, *, stop_prob: float = 0.2, max_words: int = 10) -> None:
        if not 0 < stop_prob <= 1:
            raise ConfigError(
                f"objective.corruption.selection.stop_prob={stop_prob} is not allowed: use a number above 0 and at "
                f"most 1 (0.2 in SpanBERT)"
            )
        if max_words < 1:
            raise ConfigError(f"objective.corruption.selection.max_words={max_words} is not allowed: use 1 or more")
        shares = (1 - stop_prob) ** np.arange(max_words)
        self.cumulative = np.cumsum(shares / shares.sum())[:-1]

    def bind(self, tokenizer: Tokenizer) -> None:
        """See ``Selection``."""
        self.starts_word = tokenizer.starts_word

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """See ``Selection``."""
        inner = maskable[(maskable > 0) & (maskable < len(tokens) - 1)]
        if not len(inner):
            return _with_distances(Chosen(inner, inner))
        words = words_of(tokens, inner, self.starts_word)
        lengths = 1 + self.cumulative.searchsorted(rng.random(len(words.follows)), side="right")
        return _with_distances(random_runs(words, lengths, budget, rng))


def _with_distances(chosen: Chosen) -> Chosen:
    """The same choice with what it gives."""
    positions = chosen.positions
    edges = np.flatnonzero(np.diff(positions, prepend=-2, append=np.iinfo(np.int64).max) != 1)
    sizes = np.diff(edges)
    left = np.arange(1, len(positions) + 1) - np.repeat(edges[:-1], sizes)
    return chosen._replace(per_target={"left": left, "right": np.repeat(sizes, sizes) + 1 - left})
