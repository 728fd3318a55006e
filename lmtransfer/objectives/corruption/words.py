"""The words of a row, and how runs of them are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmtransfer.objectives.corruption.selection import Chosen


class Words(NamedTuple):
    """The tokens of a row that may be hidden, as words: a piece that begins one and those after it that do not.

    A special token ends a word; what is left of a word that the row's start or a special token cuts is a word too.

    Attributes:
        positions: indices into the row, int64, ascending, shape (n,).
        edges: word w is ``positions[edges[w]:edges[w + 1]]``, int64, shape (W + 1,).
        follows: whether nothing stands between a word and the one before it, bool, shape (W,).
    """

    positions: np.ndarray
    edges: np.ndarray
    follows: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of each word, int64, shape (W,)."""
        return np.diff(self.edges)

    def chosen(self, units: Sequence[tuple[int, int]]) -> Chosen:
        """The tokens of some runs of words, each a unit.

        Args:
            units: first word and end of each run; they do not overlap.
        """
        taken = np.zeros(len(self.follows), dtype=bool)
        begins = np.zeros(len(self.follows), dtype=np.int64)
        for start, end in units:
            taken[start:end] = True
            begins[start] = 1
        sizes = self.sizes
        unit_of = np.cumsum(begins) - 1
        return Chosen(self.positions[np.repeat(taken, sizes)], np.repeat(unit_of[taken], sizes[taken]))


def words_of(tokens: np.ndarray, maskable: np.ndarray, starts_word: np.ndarray) -> Words:
    """The words of a row.

    Args:
        tokens: the row, int32.
        maskable: positions that may be hidden, int64, ascending; at least one.
        starts_word: bool per id: whether the piece begins a word.
    """
    follows = np.diff(maskable, prepend=-2) == 1
    begins = starts_word[tokens[maskable]] | ~follows
    edges = np.append(np.flatnonzero(begins), len(maskable))
    return Words(maskable, edges, follows[edges[:-1]])


def random_runs(words: Words, lengths: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
    """Runs of whole words from random first words on, until the budget of tokens is spent as far as it can be.

    First words come in random order. A run ends before a special token, a hidden word, and a word that exceeds the
    budget, as the whole-word masking of google-research/bert passes over such a word. A row whose words all exceed
    the budget hides the first of them in that order, so that each row has something to predict.

    Args:
        words: of the row.
        lengths: words of the run that would start at each word, int64, shape (W,).
        budget: tokens to hide.
        rng: decides the order.
    """
    order = rng.permutation(len(lengths)).tolist()
    sizes, follows, wanted = words.sizes.tolist(), words.follows.tolist(), lengths.tolist()
    taken = [False] * len(order)
    units = []
    for start in order:
        end, last = start, min(start + wanted[start], len(order))
        while end < last and not taken[end] and sizes[end] <= budget and (end == start or follows[end]):
            taken[end] = True
            budget -= sizes[end]
            end += 1
        if end > start:
            units.append((start, end))
            if not budget:
                break
    return words.chosen(units or [(order[0], order[0] + 1)])
