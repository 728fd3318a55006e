"""Rows of one length with padding, as other runtimes feed them, as a batch that transformer stacks can read.

Nothing here trains on padding: this is how an exported graph, whose sizes are known when it runs, computes what the
packed batch computes.

Shape legend: T = B L slots, B rows, L slots of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.layers.attention.blocks import Block, DenseBlocks, Slots
from lmtransfer.layers.attention.layout import Layout


@dataclass(frozen=True)
class PaddedLayout(Layout):
    """Rows as one dense block, whose sizes the graph alone knows: it has no lengths.

    Attributes:
        block: the rows.
    """

    block: Block = field(kw_only=True)

    @cached_property
    def dense(self) -> DenseBlocks:
        """The block."""
        slots = Slots((self.block.size * self.block.num_keys,), None)
        return DenseBlocks(slots, slots, (self.block,))

    @cached_property
    def cu_keys(self) -> Tensor:
        """None: kernels of variable length would see the padding."""
        raise NotImplementedError("padded rows are computed in dense blocks; call the model on a CPU, or in float32")


@dataclass(frozen=True, slots=True)
class PaddedRows(PackedBatch):
    """Rows laid end to end with their padding: one dense block, its spare slots hidden from every token.

    Sizes are known to the graph alone, so ``lengths`` is empty and ``num_real`` 0: for stacks that ask ``layout_of``.
    What an encoder computes at padding means nothing.

    Attributes:
        layout: of the rows.
    """

    layout: Layout = field(kw_only=True)

    @classmethod
    def of(cls, tokens_BL: Tensor, real_BL: Tensor, segments_BL: Tensor | None = None) -> PaddedRows:
        """Lay rows end to end; positions count from each row's first slot.

        Args:
            tokens_BL: token ids, any in the vocabulary at padding, int64.
            real_BL: False at padding, bool.
            segments_BL: segment ids, int64; all 0 if omitted.
        """
        rows, length = tokens_BL.shape
        positions_L = torch.arange(length, device=tokens_BL.device)
        edges = torch.arange(rows + 1, dtype=torch.int32, device=tokens_BL.device) * length
        block = Block(size=rows, num_queries=length, num_keys=length, positions=positions_L, key_mask=real_BL)
        return cls(
            tokens_T=tokens_BL.reshape(-1),
            segments_T=(torch.zeros_like(tokens_BL) if segments_BL is None else segments_BL).reshape(-1),
            positions_T=positions_L.expand(rows, length).reshape(-1),
            cu_seqlens=edges,
            lengths=(),
            num_real=0,
            layout=PaddedLayout((), None, tokens_BL.device, block=block),
        )


def layout_of(batch: PackedBatch, device: torch.device, *, causal: bool) -> Layout:
    """How every token of a batch attends: as its rows are laid out already, or made from its lengths.

    Args:
        batch: the rows; it may say of each whether it is causal.
        device: where they are read.
        causal: a token sees itself and what is before it, in a batch that does not say.
    """
    if isinstance(batch, PaddedRows):
        return replace(batch.layout, causal=causal)
    return Layout.of(batch.lengths, device=device, causal=causal, num_causal=batch.num_causal)
