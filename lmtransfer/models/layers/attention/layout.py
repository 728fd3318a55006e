"""The layout of a packed batch for attention, computed once per batch and used by every layer.

Shape legend: T packed keys, N packed queries, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.layers.attention.blocks import DenseBlocks
from lmtransfer.models.layers.attention.cpu import RowRange, SharedRows, row_ranges
from lmtransfer.models.layers.attention.flash import FlashLayout, has_kernel

#: A CPU computes sequences one by one if the longest is longer than this and the mean length is at least half of it;
#: shorter sequences share rows. On two AVX512-BF16 cores, both take the same time for 32 sequences of 60 to 200 tokens.
_LONG = 192


@dataclass(frozen=True)
class Layout:
    """Packed queries over packed keys; indices for a backend are computed on first use.

    Attributes:
        lengths: number of packed keys of each of the B sequences.
        counts: number of packed queries of each sequence, if only some tokens are queries; None if every token is a
            query. ``counts`` requires attention in which every query sees its whole sequence.
        num_causal: the first ``num_causal`` sequences are causal and the others are not; ``causal`` is then ignored. If
            None, ``causal`` applies to all sequences.
        flash: the layout for the flash kernel; None if the device does not have it, or if there are two kinds of
            sequences.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...] | None
    device: torch.device
    causal: bool = False
    num_causal: int | None = None
    flash: FlashLayout | None = None

    @classmethod
    def of(
        cls,
        num_keys: Sequence[int],
        num_queries: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        *,
        causal: bool = False,
        num_causal: int | None = None,
    ) -> Layout:
        """Lay out B sequences; see the attributes."""
        counts = None if num_queries is None else tuple(int(count) for count in num_queries)
        if num_causal in (0, len(num_keys)):
            causal, num_causal = num_causal != 0, None
        lengths, device, flash = tuple(int(length) for length in num_keys), torch.device(device), None
        if num_causal is None and has_kernel(device):
            flash = FlashLayout.of(lengths, counts, device, causal=causal)
        return cls(lengths, counts, device, causal, num_causal, flash)

    @cached_property
    def parts(self) -> tuple[Layout, ...]:
        """One layout for the causal sequences and one for the others; only this layout if all are of one kind."""
        if self.num_causal is None:
            return (self,)
        assert not self.has_selected_queries, "a selection of queries sees everything"
        kinds = ((self.lengths[: self.num_causal], True), (self.lengths[self.num_causal :], False))
        return tuple(Layout.of(lengths, None, self.device, causal=causal) for lengths, causal in kinds)

    @property
    def attends_to_all(self) -> bool:
        """Whether every query sees its whole sequence."""
        return not self.causal and self.num_causal is None

    @property
    def has_selected_queries(self) -> bool:
        """Whether only some of the tokens are queries."""
        return self.counts is not None

    @cached_property
    def is_ragged(self) -> bool:
        """Whether sequences differ in length."""
        return len(set(self.lengths)) > 1

    @property
    def is_long(self) -> bool:
        """Whether every token is a query, and the sequences are ragged and long."""
        many = max(self.lengths, default=0) > _LONG and 2 * sum(self.lengths) >= _LONG * len(self.lengths)
        return self.is_ragged and many and not self.has_selected_queries

    @property
    def max_keys(self) -> int:
        """The number of keys of the longest sequence."""
        return max(self.lengths, default=0)

    @cached_property
    def dense(self) -> DenseBlocks:
        """The sequences in dense blocks; sequences of similar length share a block."""
        counts = None if self.counts is None else np.asarray(self.counts, dtype=np.int64)
        return DenseBlocks.of(np.asarray(self.lengths, dtype=np.int64), counts, self.device)

    @cached_property
    def shared_rows(self) -> SharedRows:
        """The sequences in shared rows; all rows have the same number of key slots and of query slots."""
        return SharedRows.of(self.lengths, self.counts, self.device)

    @cached_property
    def ranges(self) -> list[RowRange]:
        """The range of packed rows around each sequence, for computing each sequence separately."""
        return row_ranges(self.lengths)


def layout_of(batch: PackedBatch, device: torch.device, *, causal: bool) -> Layout:
    """Return the attention layout of a batch: the one that it contains (``PaddedRows``), or one built from its lengths.

    ``causal`` is ignored if the batch states ``num_causal``, the number of its causal rows.
    """
    own: Layout | None = getattr(batch, "layout", None)
    if own is not None:
        return replace(own, causal=causal)
    return Layout.of(batch.lengths, device=device, causal=causal, num_causal=batch.num_causal)


class AttentionLayer(nn.Module):
    """A layer in which the tokens of a sequence see one another."""

    def __init__(self, *, dim: int, window: int | None = None) -> None:
        super().__init__()
        self.dim, self.window = dim, window

    def num_seen(self, mean_length: float) -> float:
        """Return the approximate number of tokens that a token sees in sequences of ``mean_length``."""
        return mean_length if self.window is None else min(mean_length, 2 * self.window + 1)
