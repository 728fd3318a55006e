"""What every corruption promises: which tokens of a row are hidden, and what stands in their places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.objectives.rows.base import Row


class Corrupted(NamedTuple):
    """A row as the encoder sees it, and what it must find out.

    Attributes:
        tokens: token ids, int32, shape (n,).
        positions: indices into the row of the tokens to predict, int64, ascending, shape (m,).
        targets: the ids that stood there, int32, shape (m,).
        per_target: further numbers of each target by name, int64, shape (m,) each.
        per_token: further numbers of each token by name, int64, shape (n,) each.
        causal: the row is as it is, and to be read left to right.
    """

    tokens: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})
    per_token: Mapping[str, np.ndarray] = MappingProxyType({})
    causal: bool = False


class Corruption(ABC):
    """Hides tokens of single rows, so that how rows are put into batches changes nothing.

    Attributes:
        static_masking: every epoch repeats the rows and masks of the first.
        gives: names of the numbers of each target or token that it gives beside the tokens; an objective may need them.
        uses_mask: whether it puts [MASK] into rows, which the tokenizer must have then.
        hides: whether it leaves something to predict, so that there must be an objective that does.
        hides_alike: whether it hides frequent tokens as often as others, so that the entropy of the token frequencies
            is the loss of a model that knows them alone.
        causal_share: share of the rows that it leaves as they are, to be read left to right.
    """

    static_masking: bool = False
    gives: tuple[str, ...] = ()
    uses_mask: ClassVar[bool] = False
    hides: ClassVar[bool] = True
    hides_alike: bool = True
    causal_share: float = 0.0

    def observe(self, store: TokenStore | MixedStore) -> None:  # noqa: B027
        """Learn what it must know of the text before the first row, such as how often words occur: nothing here."""

    @abstractmethod
    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """The corrupted row, decided by the row and ``rng`` alone; special tokens are never touched."""

    @abstractmethod
    def expected_targets(self, num_tokens: int) -> int:
        """About how many predictions rows of ``num_tokens`` tokens in all have, for static shapes."""


class NoCorruption(Corruption):
    """Leaves rows as they are: for objectives that predict the text itself, such as the next token."""

    hides = False

    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """The row, and nothing to predict."""
        return Corrupted(row.tokens, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))

    def expected_targets(self, num_tokens: int) -> int:
        """None."""
        return 0
