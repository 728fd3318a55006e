"""N-grams of whole words as units (ALBERT)."""

from __future__ import annotations

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.selection import Chosen
from lmtransfer.objectives.corruption.words import random_runs, words_of
from lmtransfer.tokenizers.base import Tokenizer


class NGrams:
    """Each unit is n words in a row, with p(n) proportional to 1 / n (Lan et al. 2020, section 4.1).

    Where we differ from google-research/albert: an n-gram does not reach across a special token, and one that would
    run into another n-gram ends before it, where the code drops it and may leave the budget unspent.

    Args:
        max_words: the largest n.

    Raises:
        ConfigError: ``max_words`` is less than 1.
    """

    gives: tuple[str, ...] = ()

    def __init__(self, *, max_words: int = 3) -> None:
        if max_words < 1:
            raise ConfigError(f"objective.corruption.selection.max_words={max_words} is not allowed: use 1 or more")
        shares = 1 / np.arange(1, max_words + 1)
        self.cumulative = np.cumsum(shares / shares.sum())[:-1]

    def bind(self, tokenizer: Tokenizer) -> None:
        """See ``Selection``."""
        self.starts_word = tokenizer.starts_word

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """See ``Selection``."""
        words = words_of(tokens, maskable, self.starts_word)
        lengths = 1 + self.cumulative.searchsorted(rng.random(len(words.follows)), side="right")
        return random_runs(words, lengths, budget, rng)
