"""Padded rows as a batch that transformer stacks can read, for graphs exported to other runtimes (ONNX).

An exported graph knows its sizes only when it runs. Padded rows give the same results as a packed batch. They are not
used for training.

Shape legend: T = B L slots, B rows, L slots of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.layers.attention.dense import DenseBlock, DenseBlocks, Slots
from lmtransfer.models.layers.attention.dispatch import Layout


@dataclass(frozen=True)
class PaddedLayout(Layout):
    """Rows as a single dense block; its sizes are not known before the graph runs, so the layout has no lengths."""

    block: DenseBlock = field(kw_only=True)

    @cached_property
    def dense(self) -> DenseBlocks:
        """The rows as a single dense block."""
        slots = Slots((self.block.size * self.block.num_keys,), None)
        return DenseBlocks(slots, slots, (self.block,))


@dataclass(frozen=True, slots=True)
class PaddedRows(PackedBatch):
    """Rows laid end to end with their padding, which no token sees.

    The sizes are not known before the graph runs, so ``lengths`` is empty and ``num_real`` is 0. Only stacks that call
    ``layout_of`` can read these rows. The output of an encoder at padding is meaningless.
    """

    layout: Layout = field(kw_only=True)

    @classmethod
    def of(cls, tokens_BL: Tensor, real_BL: Tensor, segments_BL: Tensor | None = None) -> PaddedRows:
        """Lay rows end to end; positions count from each row's first slot.

        Args:
            tokens_BL: token ids, int64; any valid id at padding.
            real_BL: True at real tokens, False at padding, bool.
            segments_BL: segment ids, int64; all 0 by default.
        """
        rows, length = tokens_BL.shape
        positions_L = torch.arange(length, device=tokens_BL.device)
        edges = torch.arange(rows + 1, dtype=torch.int32, device=tokens_BL.device) * length
        block = DenseBlock(size=rows, num_queries=length, num_keys=length, positions=positions_L, key_mask=real_BL)
        return cls(
            tokens_T=tokens_BL.reshape(-1),
            segments_T=(torch.zeros_like(tokens_BL) if segments_BL is None else segments_BL).reshape(-1),
            positions_T=positions_L.expand(rows, length).reshape(-1),
            cu_seqlens=edges,
            lengths=(),
            num_real=0,
            layout=PaddedLayout((), None, tokens_BL.device, block=block),
        )
