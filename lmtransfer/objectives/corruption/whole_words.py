"""Whole words as units."""

from __future__ import annotations

import numpy as np

from lmtransfer.objectives.corruption.selection import Chosen
from lmtransfer.objectives.corruption.words import random_runs, words_of
from lmtransfer.tokenizers.base import Tokenizer


class WholeWords:
    """Each word is a unit (the whole-word masking of google-research/bert); at most the budget is chosen.

    Words come in random order, and one that would exceed the budget is passed over; see ``random_runs``.
    """

    gives: tuple[str, ...] = ()

    def bind(self, tokenizer: Tokenizer) -> None:
        """See ``Selection``."""
        self.starts_word = tokenizer.starts_word

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """See ``Selection``."""
        words = words_of(tokens, maskable, self.starts_word)
        return random_runs(words, np.ones(len(words.follows), dtype=np.int64), budget, rng)
