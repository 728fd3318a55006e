"""Rows as contiguous windows of the whole corpus."""

from __future__ import annotations

from typing import Self

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count
from lmtransfer.data.store.store import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.rows.base import (
    NUM_SPECIAL,
    Frame,
    JoinedDocuments,
    Row,
    RowPlan,
    Rows,
    check_not_empty,
    text_capacity,
    with_specials,
)
from lmtransfer.randomness import generator
from lmtransfer.tokenizers.base import Tokenizer


class LanguageStream(Rows):
    """Contiguous windows of ``max_length`` tokens, across sentences and documents ([SEP] after each document).

    All rows except the last have the same length, which is the fastest case on a CPU. The documents form a ring, which
    is cut at a random place in each epoch. The windows therefore differ between epochs, and each epoch contains each
    token once. The last row holds the rest.

    Args:
        max_length: number of tokens in a row, including special tokens.
        frame: special tokens around a window: "both" ([CLS] and [SEP]), "start" ([CLS]), or "none". With "none", the
            encoder never reads [CLS], and in transfer [CLS] begins as a copy of [SEP].
        contiguous: batches consist of parallel contiguous streams in the order of the text, so that an encoder with a
            memory can carry it from batch to batch (Dai et al. 2019, section 3.2); needs ``frame="none"``.
        tokenizer: defines the special tokens.

    Raises:
        ConfigError: ``max_length`` leaves less text than special tokens, or ``frame`` does not fit ``contiguous``.
    """

    def __init__(
        self, *, max_length: Count, frame: Frame = "both", contiguous: bool = False, tokenizer: Tokenizer
    ) -> None:
        if contiguous and frame != "none":
            raise ConfigError(
                f"objective.rows.frame={frame} does not fit objective.rows.contiguous=true: contiguous windows "
                f"have no special tokens between them; use objective.rows.frame=none"
            )
        self.max_length, self.frame, self.contiguous = max_length, frame, contiguous
        self.capacity = text_capacity(max_length, num_special=NUM_SPECIAL[frame])
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> LanguageStreamPlan:
        check_not_empty(store)
        return LanguageStreamPlan(self, store, seed=seed, epoch=epoch)

    @override
    def text(self, store: TokenStore) -> JoinedDocuments:
        return JoinedDocuments(store, separator_id=self.sep_id)


class LanguageStreamPlan(RowPlan):
    """One epoch of ``LanguageStream``; see ``RowPlan``."""

    def __init__(self, rows: LanguageStream, store: TokenStore, *, seed: int, epoch: int) -> None:
        self.capacity, self.frame, self.contiguous = rows.capacity, rows.frame, rows.contiguous
        self.special_ids = rows.cls_id, rows.sep_id
        self.text = rows.text(store)
        self.offset = int(generator(seed, "stream", epoch).integers(self.text.size))
        count = -(-self.text.size // rows.capacity)
        self.windows = np.arange(count)
        self.lengths = np.full(count, rows.max_length, dtype=np.int32)
        self.lengths[-1] -= count * rows.capacity - self.text.size

    def row(self, index: int) -> Row:
        """Return window ``index``, counted from the place where the ring is cut in this epoch."""
        text, (cls_id, sep_id) = self.text, self.special_ids
        start = int(self.windows[index]) * self.capacity
        size = min(self.capacity, text.size - start)
        start = (self.offset + start) % text.size
        tokens = with_specials(text.read(start, start + size), frame=self.frame, cls_id=cls_id, sep_id=sep_id)
        around = {}
        if self.contiguous:
            around = {"next_token": text.at(start + size), "previous_token": text.at(start - 1)}
        return Row(tokens, np.zeros(len(tokens), dtype=np.int8), text.token_range(start, start + size), around)

    @override
    def take(self, rows: np.ndarray) -> Self:
        return self.copy_without_text(lengths=self.lengths[rows], windows=self.windows[rows])
