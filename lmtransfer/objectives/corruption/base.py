"""What every corruption promises: which tokens of a row are hidden, and what stands in their places."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from lmtransfer.objectives.rows.base import Row


class Corrupted(NamedTuple):
    """A row as the encoder sees it, and what it must find out.

    Attributes:
        tokens: token ids, int32, shape (n,).
        positions: indices into the row of the tokens to predict, int64, ascending, shape (m,).
        targets: the ids that stood there, int32, shape (m,).
        per_target: further numbers of each target by name, int64, shape (m,) each.
        per_token: further numbers of each token by name, int64, shape (n,) each.
    """

    tokens: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})
    per_token: Mapping[str, np.ndarray] = MappingProxyType({})


class Corruption(Protocol):
    """Hides tokens of single rows, so that how rows are put into batches changes nothing.

    Attributes:
        static_masking: every epoch repeats the rows and masks of the first.
    """

    static_masking: bool

    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """The corrupted row, decided by the row and ``rng`` alone; special tokens are never touched."""
        ...

    def expected_targets(self, num_tokens: int) -> int:
        """About how many predictions rows of ``num_tokens`` tokens in all have, for static shapes."""
        ...


class NoCorruption:
    """Leaves rows as they are: for objectives that predict the text itself, such as the next token."""

    static_masking = False

    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """The row, and nothing to predict."""
        return Corrupted(row.tokens, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))

    def expected_targets(self, num_tokens: int) -> int:
        """None."""
        return 0
