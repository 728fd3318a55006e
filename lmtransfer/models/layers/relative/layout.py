"""The layout of packed sequences and their memories for relative attention, computed once per batch for all layers.

Shape legend: T tokens, N queries, X packed keys (of each sequence: its memory, then its tokens), B sequences, R real
sequences, D width, G sequences of a block, Q and S its query and key slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, upload
from lmtransfer.models.layers.attention.blocks import Slots
from lmtransfer.models.layers.attention.layout import Layout


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of attention: the memory of each sequence, then its tokens.

    Attributes:
        memory: number of memory rows of each sequence, the same for all sequences.
        lengths: number of tokens of each of the B sequences.
        num_real: R, the number of real sequences; the memories of filler are zeros.
        order_X: for each packed key, its row in [all memories; all tokens]; None if all sequences have the same length,
            because concatenation then suffices.
        device: device of the indices.
    """

    memory: int
    lengths: tuple[int, ...]
    num_real: int
    order_X: Tensor | None
    device: torch.device

    @classmethod
    def of(cls, batch: PackedBatch, *, memory: int) -> Keys:
        """Build the keys of ``batch``, with ``memory`` memory rows before the tokens of each sequence."""
        device = batch.tokens_T.device
        order = None
        if memory and len(set(batch.lengths)) > 1:
            places = np.arange(len(batch.lengths) * memory + sum(batch.lengths))
            memories, tokens = np.split(places, [len(batch.lengths) * memory])
            rows = zip(memories.reshape(-1, memory), np.split(tokens, np.cumsum(batch.lengths)[:-1]), strict=True)
            order = upload(np.concatenate([part for row in rows for part in row]), device)
        return cls(memory, batch.lengths, batch.num_real, order, device)

    def with_memory(self, memory_RMD: Tensor | None, rows_TD: Tensor) -> Tensor:
        """Return the packed keys (X, D): memories of real sequences, and token rows; also works without dimension D."""
        if not self.memory:
            return rows_TD
        assert memory_RMD is not None
        filler = len(self.lengths) - self.num_real
        memory_RMD = memory_RMD.to(rows_TD.dtype)
        if filler:
            memory_RMD = torch.cat([memory_RMD, memory_RMD.new_zeros(filler, *memory_RMD.shape[1:])])
        if self.order_X is None:
            together = torch.cat([memory_RMD, rows_TD.view(len(self.lengths), -1, *rows_TD.shape[1:])], 1)
            return together.flatten(0, 1)
        return torch.cat([memory_RMD.flatten(0, 1), rows_TD]).index_select(0, self.order_X)

    def last_keys(self, keys_XD: Tensor, size: int) -> Tensor:
        """Return each real sequence's last keys, detached: at most ``size``, the same number for each, (R, M, D)."""
        size = min(size, self.memory + min(self.lengths[: self.num_real]))
        if len(set(self.lengths)) == 1:
            return keys_XD.detach().view(len(self.lengths), -1, keys_XD.shape[1])[: self.num_real, -size:]
        ends = np.cumsum(np.asarray(self.lengths) + self.memory)[: self.num_real]
        places = upload((ends[:, None] - size + np.arange(size)).reshape(-1), self.device)
        return keys_XD.detach().index_select(0, places).view(self.num_real, size, -1)


@dataclass(frozen=True, slots=True)
class RelativeBlock:
    """The keys that the queries of a dense block see, and their distances.

    Attributes:
        num_tokens: number of token slots of each sequence; the other S - num_tokens keys are its memory.
        hidden: True where a query does not see a key, broadcastable to (G, heads, Q, S); None if all keys are seen.
        differs: True where a query and a key belong to different segments, (G, 1, Q, S); None if segments are not used.
        places: for a selection of queries, the index of the distance to each key in the row of distances, int64,
            (1, G, Q, S); None if the queries are all tokens in order.
    """

    num_tokens: int
    hidden: Tensor | None
    differs: Tensor | None
    places: Tensor | None


@dataclass(frozen=True, slots=True)
class RelativeLayout:
    """Packed queries over packed keys.

    Attributes:
        layout: the slots of queries and keys, and the dense blocks.
        blocks: masks and distances of each block.
        causal: keys after a query are hidden, so distances below -1 are not needed.
    """

    layout: Layout
    blocks: tuple[RelativeBlock, ...]
    causal: bool

    @classmethod
    def of(
        cls,
        keys: Keys,
        *,
        causal: bool = False,
        num_seen: int | None = None,
        counts: Sequence[int] | None = None,
        positions_N: Tensor | None = None,
        segments_T: Tensor | None = None,
        order_T: Tensor | None = None,
        attends_to_itself: bool = True,
    ) -> RelativeLayout:
        """Lay out a batch.

        Args:
            causal: a query sees no key after it.
            num_seen: a query sees at most this many keys: the nearest ones, including itself; None for no limit.
                Requires ``causal``.
            counts: number of queries of each sequence, if only some tokens are queries; None if every token is a query.
            positions_N: positions of the queries within their sequences; ``None`` only with ``counts=None``.
            segments_T: segment of each token, if segments are used; memory has segment 0.
            order_T: rank of each token in the factorization order, or None. With an order, a query sees only keys of
                lower rank and all memory. There is one entry per token, even for a selection of queries.
            attends_to_itself: with ``order_T``, whether a query also sees the keys of its own rank.
        """
        assert not (causal and counts is not None), "a selection of queries sees all that its order allows"
        num_keys = tuple(keys.memory + length for length in keys.lengths)
        num_queries = keys.lengths if keys.memory and counts is None else counts
        layout = Layout(num_keys, None if num_queries is None else tuple(num_queries), keys.device)
        of_query = None
        if counts is not None:
            assert positions_N is not None
            starts_B = np.cumsum((0, *keys.lengths[:-1]))
            of_query = positions_N + upload(np.repeat(starts_B, counts), keys.device)
        positions = None if positions_N is None else _slotted(positions_N, layout.queries)
        pairs = [
            None if per_token_T is None else _pairs(keys, layout, per_token_T, of_query, memory)
            for per_token_T, memory in ((segments_T, 0), (order_T, -1))
        ]
        blocks = []
        for place, block in enumerate(layout.blocks):
            num_tokens = block.num_keys - keys.memory
            hidden = None if block.key_mask is None else ~block.key_mask[:, None, :]
            if causal:
                ahead = block.positions[None, :] - keys.memory - block.positions[: block.num_queries, None]
                unseen = ahead > 0 if num_seen is None else (ahead > 0) | (ahead <= -num_seen)
                hidden = unseen if hidden is None else hidden | unseen
            differs = places = None
            if pairs[0] is not None:
                segment_GQ, segment_GS = pairs[0][place]
                differs = (segment_GQ[:, :, None] != segment_GS[:, None, :])[:, None]
            if pairs[1] is not None:
                order_GQ, order_GS = (order[:, :, None] for order in pairs[1][place])
                order_GS = order_GS.transpose(1, 2)
                unseen = order_GS > order_GQ if attends_to_itself else order_GS >= order_GQ
                hidden = unseen if hidden is None else hidden | unseen
            if positions is not None:
                position_GQ = positions[place].view(block.size, block.num_queries)
                places = (num_tokens - 1 - position_GQ[:, :, None] + block.positions)[None]
            if hidden is not None:
                hidden = hidden[:, None] if hidden.ndim == 3 else hidden
            blocks.append(RelativeBlock(num_tokens, hidden, differs, places))
        return cls(layout, tuple(blocks), causal)

    def distances(self) -> Tensor:
        """Return all distances from a query back to a key that any block needs, the largest first, int64."""
        most_distant, nearest = self.layout.max_keys - 1, self._nearest(max(block.num_tokens for block in self.blocks))
        return torch.arange(most_distant, nearest - 1, -1, device=self.layout.device)

    def distances_of(self, block: int) -> slice:
        """Return the slice of ``distances`` that a block needs: from its first key's distance down to the nearest."""
        zero = self.layout.max_keys - 1
        most_distant = self.layout.blocks[block].num_keys - 1
        return slice(zero - most_distant, zero - self._nearest(self.blocks[block].num_tokens) + 1)

    def _nearest(self, num_tokens: int) -> int:
        """Return the least distance, from the first of ``num_tokens`` tokens to the last; -1 if causal."""
        return -1 if self.causal else 1 - num_tokens


def _slotted(rows: Tensor, slots: Slots) -> tuple[Tensor, ...]:
    if slots.moves is not None:
        rows = rows.index_select(0, slots.moves.gather_S)
    return rows.split(slots.sizes)


def _pairs(
    keys: Keys, layout: Layout, per_token_T: Tensor, of_query: Tensor | None, memory: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the number of each query (G, Q) and key (G, S) in each block; all memory has the number ``memory``."""
    per_query = per_token_T if of_query is None else per_token_T[of_query]
    memory_RM = per_token_T.new_full((keys.num_real, keys.memory), memory)
    per_key = keys.with_memory(memory_RM, per_token_T)
    queries, keys_in_slots = _slotted(per_query, layout.queries), _slotted(per_key, layout.keys)
    return [
        (q.view(block.size, -1), k.view(block.size, -1))
        for block, q, k in zip(layout.blocks, queries, keys_in_slots, strict=True)
    ]
