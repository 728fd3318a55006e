"""Which units of a row are hidden: single tokens, whole words. What replaces them is decided elsewhere.

A selection is a function of (tokens, maskable positions, budget, rng) that returns positions and, where units are
larger than a token, the number of the unit that each belongs to (so that a replacement may be drawn for a unit).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Chosen(NamedTuple):
    """Positions to hide.

    Attributes:
        positions: indices into the row, int64, ascending, shape (m,).
        units: number of the unit that each belongs to, from 0 in order, int64, shape (m,).
    """

    positions: np.ndarray
    units: np.ndarray


class Selection(Protocol):
    """Chooses units of a row until a budget of tokens is spent."""

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """Choose at most ``budget`` tokens.

        Args:
            tokens: the row, int32.
            maskable: positions that may be chosen, int64, ascending.
            budget: tokens to choose; from 1 to ``len(maskable)``.
            rng: decides.
        """
        ...


class SingleTokens:
    """Each token is a unit; exactly the budget is chosen."""

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """See ``Selection``."""
        positions = rng.permutation(maskable)[:budget]
        positions.sort()
        return Chosen(positions, np.arange(budget))


class WholeWords:
    """Each word is a unit: a piece that begins a word and those after it that do not.

    As the whole-word masking of google-research/bert: words come in random order, and one that would exceed the
    budget is passed over. A row whose first word in that order exceeds it, and all others too, hides that first word,
    so that each row has something to predict.

    Args:
        starts_word: bool per id: whether the piece begins a word.
    """

    def __init__(self, *, starts_word: np.ndarray) -> None:
        self.starts_word = starts_word

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """See ``Selection``."""
        begins = self.starts_word[tokens[maskable]]
        begins[1:] |= np.diff(maskable) > 1
        begins[0] = True
        edges = np.append(np.flatnonzero(begins), len(maskable))
        sizes = np.diff(edges)
        order = rng.permutation(len(sizes))
        left, taken = budget, []
        for word, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            if size <= left:
                taken.append(word)
                left -= size
                if not left:
                    break
        words = np.sort(np.array(taken or [int(order[0])]))
        positions = np.concatenate([maskable[edges[word] : edges[word + 1]] for word in words])
        return Chosen(positions, np.repeat(np.arange(len(words)), sizes[words]))
