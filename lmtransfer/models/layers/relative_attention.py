"""Multi-head attention with relative positions and a memory, with the masks of Transformer-XL and XLNet.

``RelativeLayout`` computes which keys each query sees: for Transformer-XL the keys before it (causal), for XLNet the
keys that its factorization order allows (the permutation mask). XLNet's two streams are in ``models.xlnet``.

Shape legend: T tokens, N packed queries, X packed keys, R real sequences, M memory rows, P distances, D width, H heads,
K head width, G sequences in a block, Q and S query and key slots in a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch, upload
from lmtransfer.models.layers.attention.dense import Slots, attention_mask, from_blocks, to_blocks
from lmtransfer.models.layers.attention.dispatch import Layout
from lmtransfer.models.layers.attention.self_attention import AttentionLayer
from lmtransfer.models.layers.building_blocks import StackedLinear
from lmtransfer.models.layers.building_blocks import dropout as drop


@dataclass(frozen=True, slots=True)
class Keys:
    """The packed keys of a batch: the memory of each sequence, then its tokens.

    Attributes:
        memory: number of memory rows M of each sequence, the same for all sequences.
        num_real: number of real sequences R; the memories of filler sequences are zeros.
        order_X: for each packed key, its row in [all memories; all tokens]; None if all sequences have the same length,
            because concatenation is then sufficient.
    """

    memory: int
    lengths: tuple[int, ...]
    num_real: int
    order_X: Tensor | None
    device: torch.device

    @classmethod
    def of(cls, batch: PackedBatch, *, memory: int) -> Keys:
        """Describe the keys of ``batch``, with ``memory`` memory rows before the tokens of each sequence."""
        device = batch.tokens_T.device
        order = None
        if memory and len(set(batch.lengths)) > 1:
            places = np.arange(len(batch.lengths) * memory + sum(batch.lengths))
            memories, tokens = np.split(places, [len(batch.lengths) * memory])
            rows = zip(memories.reshape(-1, memory), np.split(tokens, np.cumsum(batch.lengths)[:-1]), strict=True)
            order = upload(np.concatenate([part for row in rows for part in row]), device)
        return cls(memory, batch.lengths, batch.num_real, order, device)

    def with_memory(self, memory_RMD: Tensor | None, rows_TD: Tensor) -> Tensor:
        """Join the memories of the real sequences and the rows of the tokens into packed keys, (X, D) or (X,)."""
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
        """Return the last keys of each real sequence, equally many and at most ``size``, detached, (R, M, D)."""
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
        num_tokens: number of token slots of each sequence; the other S - num_tokens key slots are its memory.
        hidden: True where a query does not see a key, broadcastable to (G, H, Q, S); None if all keys are seen.
        differs: True where a query and a key belong to different segments, (G, 1, Q, S); None if segments are not used.
        places: for a selection of queries, the index of each query-key distance in the row of distances, int64,
            (1, G, Q, S); None if the queries are all tokens in order.
    """

    num_tokens: int
    hidden: Tensor | None
    differs: Tensor | None
    places: Tensor | None


@dataclass(frozen=True, slots=True)
class RelativeLayout:
    """The keys that each packed query sees, and their distances.

    Attributes:
        causal: whether keys after a query are hidden, so that distances below -1 are not needed.
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
            num_seen: maximum number of keys that a query sees: the nearest ones, including itself; None for no limit.
                Requires ``causal``.
            counts: number of queries in each sequence; None if all tokens are queries.
            positions_N: positions of the queries within their sequences; ``None`` only with ``counts=None``.
            segments_T: segment of each token, if segments are used; the memory has segment 0.
            order_T: rank of each token in the factorization order, one for each token even if only some are queries, or
                None. With an order, a query sees the memory and the keys of lower rank only.
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
        positions = None if positions_N is None else _slotted(positions_N, layout.dense.queries)
        pairs = [
            None if per_token_T is None else _pairs(keys, layout, per_token_T, of_query, memory)
            for per_token_T, memory in ((segments_T, 0), (order_T, -1))
        ]
        blocks = []
        for place, block in enumerate(layout.dense.blocks):
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
        """Return all distances from a query back to a key that the blocks need, in descending order, int64, (P,)."""
        most_distant, nearest = self.layout.max_keys - 1, self._nearest(max(block.num_tokens for block in self.blocks))
        return torch.arange(most_distant, nearest - 1, -1, device=self.layout.device)

    def distances_of(self, block: int) -> slice:
        """Return the slice of ``distances`` that a block needs."""
        zero = self.layout.max_keys - 1
        most_distant = self.layout.dense.blocks[block].num_keys - 1
        return slice(zero - most_distant, zero - self._nearest(self.blocks[block].num_tokens) + 1)

    def _nearest(self, num_tokens: int) -> int:
        """Return the smallest distance, from the first of ``num_tokens`` tokens to the last; -1 if causal."""
        return -1 if self.causal else 1 - num_tokens


def _slotted(rows: Tensor, slots: Slots) -> tuple[Tensor, ...]:
    if slots.moves is not None:
        rows = rows.index_select(0, slots.moves.gather_S)
    return rows.split(slots.sizes)


def _pairs(
    keys: Keys, layout: Layout, per_token_T: Tensor, of_query: Tensor | None, memory: int
) -> list[tuple[Tensor, Tensor]]:
    """Arrange a value per token by block: the values of the queries (G, Q) and of the keys (G, S).

    Args:
        of_query: the token of each query; None if all tokens are queries.
        memory: the value of all memory rows.
    """
    per_query = per_token_T if of_query is None else per_token_T[of_query]
    memory_RM = per_token_T.new_full((keys.num_real, keys.memory), memory)
    per_key = keys.with_memory(memory_RM, per_token_T)
    queries, keys_in_slots = _slotted(per_query, layout.dense.queries), _slotted(per_key, layout.dense.keys)
    return [
        (q.view(block.size, -1), k.view(block.size, -1))
        for block, q, k in zip(layout.dense.blocks, queries, keys_in_slots, strict=True)
    ]


class RelativeBiases(nn.Module):
    """Learned biases of the queries: u for products with keys, v for distances, and s for segments.

    Dai et al. 2019, section 3.3 (u, v); Yang et al. 2019, section 2.5 (s and the two segment vectors).

    Args:
        segments: whether to create s, and the vectors for "same segment" and "different segments".
    """

    def __init__(self, *, dim: int, segments: bool = False) -> None:
        super().__init__()
        self.content = nn.Parameter(torch.empty(dim).normal_(std=0.02))
        self.position = nn.Parameter(torch.empty(dim).normal_(std=0.02))
        self.segment = nn.Parameter(torch.empty(dim).normal_(std=0.02)) if segments else None
        self.same_or_different = nn.Parameter(torch.empty(2, dim).normal_(std=0.02)) if segments else None

    def unused_segment_term(self) -> Tensor | float:
        """Return 0, with a gradient of 0 for the segment parameters, for batches in which all rows have one segment."""
        if self.segment is None or self.same_or_different is None:
            return 0.0
        return 0.0 * (self.segment.sum() + self.same_or_different.sum())


class RelativeAttention(AttentionLayer):
    """Attention with the scores (q + u) k + (q + v) r, plus (q + s) e with segments; its linear layers have no biases.

    r is a projection of the sinusoids of the distance from query to key. e is the vector for "same segment" or
    "different segments". Only the difference of these two vectors is computed, because a softmax depends on nothing
    else.
    """

    def __init__(self, *, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(dim=dim)
        self.num_heads, self.attention_dropout = num_heads, dropout
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = StackedLinear(dim, dim, parts=("key", "value"), bias=False)
        self.position = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(
        self,
        queries_ND: Tensor,
        key_value_X2D: Tensor,
        by_distance_PD: Tensor,
        biases: RelativeBiases,
        at: RelativeLayout,
    ) -> Tensor:
        """Compute relative attention, (N, D).

        Args:
            key_value_X2D: ``self.key_value`` of the states at the keys.
            by_distance_PD: ``self.position`` of the sinusoids of ``at.distances()``.
        """
        query_ND = self.query(queries_ND)
        with torch.autocast(query_ND.device.type, enabled=False):
            attended = self._attend(query_ND, key_value_X2D, by_distance_PD, biases, at)
        return self.output(attended)

    def _attend(
        self,
        query_ND: Tensor,
        key_value_X2D: Tensor,
        by_distance_PD: Tensor,
        biases: RelativeBiases,
        at: RelativeLayout,
    ) -> Tensor:
        dtype, layout, width = query_ND.dtype, at.layout, self.dim // self.num_heads
        if not layout.dense.blocks:
            return query_ND  # there are no queries
        if dtype == torch.bfloat16 and query_ND.device.type == "cpu" and layout.dense.keys.moves is not None:
            # As in ``dense_attention``: a CPU builds a kernel for each new shape of a bfloat16 product.
            query_ND, key_value_X2D, by_distance_PD = query_ND.float(), key_value_X2D.float(), by_distance_PD.float()
        counts_segments = biases.segment is not None and any(block.differs is not None for block in at.blocks)
        content_D = biases.content if counts_segments else biases.content + biases.unused_segment_term()
        queries_u = to_blocks(_biased(query_ND, content_D, width), layout.dense.queries)
        queries_v = to_blocks(_biased(query_ND, biases.position, width), layout.dense.queries)
        keys_values = to_blocks(key_value_X2D, layout.dense.keys)
        if biases.segment is not None and counts_segments:
            slotted_s = to_blocks(_biased(query_ND, biases.segment, width), layout.dense.queries)
        outputs = []
        for place, (block, relative) in enumerate(zip(layout.dense.blocks, at.blocks, strict=True)):
            shape = (block.size, block.num_queries, self.num_heads, width)
            key, value = keys_values[place].view(block.size, block.num_keys, 2, self.num_heads, width).unbind(2)
            scores_GHQS = queries_u[place].view(shape).transpose(1, 2) @ key.permute(0, 2, 3, 1)
            row_PD = by_distance_PD[at.distances_of(place)]
            scores_GHQS = self._add_positions(scores_GHQS, queries_v[place], row_PD, relative)
            if relative.differs is not None and biases.same_or_different is not None:
                same, different = biases.same_or_different.to(query_ND.dtype)
                more_GHQ1 = (slotted_s[place] * (different - same)).view(shape).sum(-1).transpose(1, 2)[..., None]
                scores_GHQS = scores_GHQS + more_GHQ1 * relative.differs
            if relative.hidden is not None:
                scores_GHQS = scores_GHQS + attention_mask(relative.hidden, scores_GHQS.dtype)
            weights_GHQS = scores_GHQS.softmax(-1)
            if self.training and self.attention_dropout:
                weights_GHQS = drop(weights_GHQS, self.attention_dropout)
            outputs.append((weights_GHQS @ value.transpose(1, 2)).transpose(1, 2).reshape(-1, self.dim))
        output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).to(dtype)
        return from_blocks(output, layout.dense.queries)

    def _add_positions(self, scores_GHQS: Tensor, query: Tensor, row_PD: Tensor, relative: RelativeBlock) -> Tensor:
        """Add (q + v) r to the scores; ``row_PD`` holds the projected distances of the block."""
        size, _, num_queries, _ = scores_GHQS.shape
        row_HKP = row_PD.view(-1, self.num_heads, self.dim // self.num_heads).permute(1, 2, 0)
        query_HNK = query.view(-1, self.num_heads, self.dim // self.num_heads).transpose(0, 1)
        by_distance_HGQP = (query_HNK @ row_HKP).view(self.num_heads, size, num_queries, -1)
        if relative.places is None:
            return add_shifted(scores_GHQS, by_distance_HGQP, relative.num_tokens - 1)
        places = relative.places.expand(self.num_heads, -1, -1, -1)
        return scores_GHQS + by_distance_HGQP.gather(-1, places).transpose(0, 1)


def _biased(query_ND: Tensor, bias_D: Tensor, width: int) -> Tensor:
    """Compute (q + bias) / sqrt(K)."""
    return torch.add(bias_D.to(query_ND.dtype) * width**-0.5, query_ND, alpha=width**-0.5)


def sinusoids(distances_P: Tensor, dim: int) -> Tensor:
    """Compute the sines and cosines of the distances at ``dim / 2`` wavelengths, float32, (P, D).

    These are the features of Vaswani et al. 2017, section 3.5, in the order of Transformer-XL's code: all sines, then
    all cosines.
    """
    exponents = torch.arange(0, dim, 2, device=distances_P.device, dtype=torch.float32) / dim
    angles = distances_P.float()[:, None] / 10000.0**exponents
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :dim]


def add_shifted(scores_GHQS: Tensor, by_distance_HGQP: Tensor, offset: int) -> Tensor:
    """Add entry ``offset - i + j`` of row i of ``by_distance_HGQP`` to the score of query i and key j, in place.

    This is the relative shift of Dai et al. 2019, appendix B, as a view with other strides, without a copy or a gather.
    An entry outside the row is taken from a neighboring row; the caller must hide such keys.
    """
    return _AddShifted.apply(scores_GHQS, by_distance_HGQP, offset)


def _shifted(by_distance_HGQP: Tensor, num_keys: int, offset: int) -> Tensor:
    """Return the view (G, H, Q, S)."""
    heads, groups, queries, distances = by_distance_HGQP.shape
    size = queries * distances
    return by_distance_HGQP.as_strided(
        (groups, heads, queries, num_keys),
        (size, groups * size, distances - 1, 1),
        by_distance_HGQP.storage_offset() + offset,
    )


class _AddShifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, by_distance: Tensor, offset: int) -> Tensor:
        ctx.mark_dirty(scores)
        ctx.shape, ctx.offset = by_distance.shape, offset
        return scores.add_(_shifted(by_distance.contiguous(), scores.shape[-1], offset))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, distances = ctx.shape[2:]
        if distances == grad.shape[-1] + 1:  # the rows of the view are adjacent
            by_distance = grad.new_empty(ctx.shape)
            flat = by_distance.view(*ctx.shape[:2], queries * distances)
            flat[..., : ctx.offset] = 0
            flat[..., ctx.offset + queries * grad.shape[-1] :] = 0
        else:
            by_distance = grad.new_zeros(ctx.shape)
        _shifted(by_distance, grad.shape[-1], ctx.offset).copy_(grad)
        return grad, by_distance, None
