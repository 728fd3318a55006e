"""Which tokens of a row are hidden, in units such as words or spans. What replaces them is decided elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from lmtransfer.tokenizers.base import Tokenizer


class Chosen(NamedTuple):
    """Positions to hide.

    Attributes:
        positions: indices into the row, int64, ascending, shape (m,).
        units: number of the unit that each belongs to, from 0 in order, int64, shape (m,).
        per_target: further numbers of each position by name, int64, shape (m,) each.
    """

    positions: np.ndarray
    units: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})


class Selection(ABC):
    """Chooses units of a row until a budget of tokens is spent.

    Attributes:
        gives: names in ``Chosen.per_target``.
    """

    gives: tuple[str, ...] = ()

    def bind(self, tokenizer: Tokenizer) -> None:  # noqa: B027
        """Learn what it needs of the vocabulary, once, before the first row: nothing here.

        Raises:
            ConfigError: the vocabulary does not have it.
        """

    @abstractmethod
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """Choose about ``budget`` tokens, and none that is not in ``maskable``.

        Args:
            tokens: the row, int32.
            maskable: positions that may be chosen, int64, ascending.
            budget: tokens to choose; from 1 to ``len(maskable)``.
            rng: decides.
        """


class SingleTokens(Selection):
    """Each token is a unit; exactly the budget is chosen (Devlin et al. 2019, section 3.1)."""

    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Chosen:
        """See ``Selection``."""
        positions = rng.permutation(maskable)[:budget]
        positions.sort()
        return Chosen(positions, np.arange(budget))
