"""The selection of the tokens to mask, in units such as words or spans. ``Replacement`` decides what replaces them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.tokenizers.base import Tokenizer


class Choice(NamedTuple):
    """Positions to mask.

    Attributes:
        positions: indices into the row, int64, ascending, shape (m,).
        units: number of the unit of each position, from 0 in order, int64, shape (m,).
        per_target: further numbers for each position by name, int64, shape (m,) each.
    """

    positions: np.ndarray
    units: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})


def sample_order(items: np.ndarray, weights: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return items in random order: the first is sampled by weight from all items, the second from the rest, and so on.

    Args:
        items: the items, shape (n,).
        weights: weight of each item, above 0, to which its probability of being sampled is proportional; None for equal
            weights.
        rng: source of random numbers. With weights, items are sorted by an exponential variate divided by the weight
            (Efraimidis and Spirakis 2006, https://doi.org/10.1016/j.ipl.2005.11.003).
    """
    if weights is None:
        return rng.permutation(items)
    return items[np.argsort(rng.exponential(size=len(items)) / weights, kind="stable")]


class Selection(ABC):
    """Chooses units of a row until a token budget is used up.

    Attributes:
        provides: names in ``Choice.per_target``.
        supports_weights: whether it supports ``token_weights``.
        token_weights: weight of each id, above 0; a unit's weight is the mean of its tokens'. None for equal weights.
    """

    provides: tuple[str, ...] = ()
    supports_weights: bool = False
    token_weights: np.ndarray | None = None

    def bind(self, tokenizer: Tokenizer) -> None:  # noqa: B027
        """Read properties of the vocabulary, once, before the first row; by default, do nothing.

        Raises:
            ConfigError: the vocabulary lacks something that the selection needs.
        """

    @abstractmethod
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        """Choose about ``budget`` tokens, all of them in ``maskable``.

        Args:
            tokens: the row, int32.
            maskable: positions that may be chosen, int64, ascending.
            budget: number of tokens to choose, from 1 to ``len(maskable)``.
        """


class SingleTokens(Selection):
    """Each token is a unit; exactly the budget is chosen (Devlin et al. 2019, section 3.1)."""

    supports_weights = True

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        weights = None if self.token_weights is None else self.token_weights[tokens[maskable]]
        positions = sample_order(maskable, weights, rng)[:budget]
        positions.sort()
        return Choice(positions, np.arange(budget))
