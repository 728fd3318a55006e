"""The interface of all corruptions: which tokens of a row are masked, and what replaces them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.objectives.rows.base import Row


class CorruptedRow(NamedTuple):
    """A row as the encoder sees it, and the tokens to predict.

    Attributes:
        tokens: token ids, int32, shape (n,).
        positions: indices into the row of the tokens to predict, int64, ascending, shape (m,).
        targets: the original ids at these positions, int32, shape (m,).
        per_target: further numbers for each target by name, int64, shape (m,) each.
        per_token: further numbers for each token by name, int64, shape (n,) each.
        causal: whether the row is unchanged and the encoder reads it left to right.
    """

    tokens: np.ndarray
    positions: np.ndarray
    targets: np.ndarray
    per_target: Mapping[str, np.ndarray] = MappingProxyType({})
    per_token: Mapping[str, np.ndarray] = MappingProxyType({})
    causal: bool = False


class Corruption(ABC):
    """Masks tokens of each row independently, so that the result does not depend on the batch.

    Attributes:
        static_masking: whether every epoch repeats the rows and masks of the first epoch.
        provides: names of the further numbers per target or per token that it provides; an objective may need them.
        uses_mask: whether it inserts [MASK] into rows; the tokenizer must then have [MASK].
        hides: whether it produces tokens to predict; an objective must then predict them.
        shows_targets: whether the tokens to predict remain visible in the row. An objective that needs what it
            ``provides`` hides them itself; any other objective would see them.
        masks_uniformly: whether it masks frequent tokens as often as rare tokens, so that the entropy of the token
            frequencies is the loss of a model that knows only these frequencies.
        causal_share: share of the rows that it leaves unchanged and the encoder reads left to right.
    """

    static_masking: bool = False
    provides: tuple[str, ...] = ()
    uses_mask: ClassVar[bool] = False
    hides: ClassVar[bool] = True
    shows_targets: ClassVar[bool] = False
    masks_uniformly: bool = True
    causal_share: float = 0.0

    def observe(self, store: TokenStore | MixedStore) -> None:  # noqa: B027
        """Read statistics of the text before the first row, such as word frequencies; by default, do nothing."""

    @abstractmethod
    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        """Return the corrupted row; it depends only on the row and ``rng``, and special tokens never change."""

    @abstractmethod
    def expected_targets(self, num_tokens: int) -> int:
        """Return the expected number of predictions in rows with ``num_tokens`` tokens in total, for static shapes."""


class NoCorruption(Corruption):
    """Leaves rows unchanged: for objectives that predict the text itself, such as the next token."""

    hides = False

    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        """Return the unchanged row, without tokens to predict."""
        return CorruptedRow(row.tokens, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))

    def expected_targets(self, num_tokens: int) -> int:
        """Return 0, because it predicts no masked tokens."""
        return 0
