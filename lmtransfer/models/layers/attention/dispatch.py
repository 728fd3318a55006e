"""Chooses the attention kernel by the layout of the batch, the device and the dtype.

All kernels compute the same function. ``attention`` takes the first that applies:

1. On CUDA (sm80 or newer), in bfloat16 or float16, without dropout on the attention weights: PyTorch's variable-length
   flash kernel (``flash_attention``). On Hopper GPUs, ``training.hardware.setup`` selects its third version, FA3.
2. On a CPU, for sequences of different lengths without dropout: short sequences share rows (``SharedRowAttention``),
   and long sequences are computed one by one (``LongAttention``).
3. Otherwise: dense blocks of sequences of similar length, as matrix products and a softmax (``dense_attention``).

Relative attention (Transformer-XL, XLNet) always uses dense blocks; see ``layers.relative_attention``.

Shape legend: T packed keys, N packed queries, B sequences, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.layers.attention.cpu import (
    LongAttention,
    RowRange,
    SharedRowAttention,
    SharedRows,
    row_ranges,
)
from lmtransfer.models.layers.attention.dense import DenseBlocks, dense_attention
from lmtransfer.models.layers.attention.flash import FlashLayout, can_run_flash, flash_attention, has_kernel

#: A CPU computes sequences one by one if the longest is longer than this and the mean length is at least half of it.
#: On two AVX512-BF16 cores, both kernels take the same time for 32 sequences of 60 to 200 tokens.
_LONG = 192


@dataclass(frozen=True)
class Layout:
    """The packed queries and keys of a batch, computed once for all layers (indices for a kernel on first use).

    Attributes:
        lengths: number of packed keys of each of the B sequences.
        counts: number of packed queries of each sequence, if only some tokens are queries; None if every token is a
            query. ``counts`` requires attention in which every query sees its whole sequence.
        num_causal: number of causal sequences, which come first; ``causal`` is then ignored. If None, ``causal``
            applies to all sequences.
        flash: the layout for the flash kernel; None if the device lacks this kernel, or if only some of the sequences
            are causal.
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
        """One layout for the causal sequences and one for the others; this layout alone if all are of one kind."""
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
        """Whether every token is a query, and the sequences are long and differ in length."""
        many = max(self.lengths, default=0) > _LONG and 2 * sum(self.lengths) >= _LONG * len(self.lengths)
        return self.is_ragged and many and not self.has_selected_queries

    @property
    def max_keys(self) -> int:
        """The number of keys of the longest sequence."""
        return max(self.lengths, default=0)

    @cached_property
    def dense(self) -> DenseBlocks:
        """The sequences in dense blocks."""
        counts = None if self.counts is None else np.asarray(self.counts, dtype=np.int64)
        return DenseBlocks.of(np.asarray(self.lengths, dtype=np.int64), counts, self.device)

    @cached_property
    def shared_rows(self) -> SharedRows:
        """The sequences in rows that several of them share."""
        return SharedRows.of(self.lengths, self.counts, self.device)

    @cached_property
    def ranges(self) -> list[RowRange]:
        """The range of packed rows around each sequence."""
        return row_ranges(self.lengths)


def layout_of(batch: PackedBatch, device: torch.device, *, causal: bool) -> Layout:
    """Return the batch's own attention layout (``PaddedRows``), or build the layout from its sequence lengths.

    ``causal`` is ignored if the batch states its number of causal rows, ``num_causal``.
    """
    own: Layout | None = getattr(batch, "layout", None)
    if own is not None:
        return replace(own, causal=causal)
    return Layout.of(batch.lengths, device=device, causal=causal, num_causal=batch.num_causal)


def attention(
    query_NHK: Tensor,
    key_THK: Tensor,
    value_THK: Tensor,
    layout: Layout,
    *,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)) v within each sequence, (N, H, K), in the dtype of the queries.

    Args:
        reach: maximum distance, in positions, of the keys that a query sees; None for no limit.
        dropout: probability of dropping an attention weight; only the dense blocks support it.
    """
    flash = layout.flash
    if flash is not None and dropout == 0.0 and len(query_NHK) and can_run_flash(query_NHK, key_THK, value_THK):
        return flash_attention(query_NHK, key_THK, value_THK, flash, reach=reach)
    return _uncompiled(query_NHK, key_THK, value_THK, layout, reach, dropout)


@cache
def keep_uncompiled() -> None:
    """Keep ``torch.compile`` out of the kernels whose shapes change from batch to batch; those around have static ones.

    This is no decorator, because ``torch.compiler.disable`` imports the compiler, which takes more than a second.
    """
    global _uncompiled
    _uncompiled = torch.compiler.disable(_uncompiled)


def _uncompiled(query: Tensor, key: Tensor, value: Tensor, layout: Layout, reach: int | None, dropout: float) -> Tensor:
    if len(layout.parts) > 1:
        sizes = [sum(part.lengths) for part in layout.parts]
        split = (states.split(sizes) for states in (query, key, value))
        return torch.cat(
            [
                attention(of_query, of_key, of_value, part, reach=reach, dropout=dropout)
                for of_query, of_key, of_value, part in zip(*split, layout.parts, strict=True)
            ]
        )
    causal = layout.causal
    assert not (layout.has_selected_queries and (causal or reach is not None)), "a selection of queries sees everything"
    if not len(query):
        return query
    with torch.autocast(query.device.type, enabled=False):
        if layout.is_ragged and dropout == 0.0 and query.device.type == "cpu":
            if layout.is_long:
                return LongAttention.apply(query, key, value, layout.ranges, causal, reach)
            mask_GQS = layout.shared_rows.attention_mask(query.dtype, causal=causal, reach=reach)
            return SharedRowAttention.apply(query, key, value, layout.shared_rows, mask_GQS)
        return dense_attention(query, key, value, layout.dense, causal, reach, dropout)
