"""Multi-head attention with relative positions over packed sequences with memories.

Shape legend: N packed queries, X packed keys, P distances, D width, H heads, K head width, G sequences of a block, Q
and S its query and key slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.models.layers.attention.base import AttentionLayer
from lmtransfer.models.layers.attention.blocks import from_blocks, to_blocks
from lmtransfer.models.layers.attention.visibility import attention_mask
from lmtransfer.models.layers.dropout import Dropout
from lmtransfer.models.layers.dropout import dropout as drop
from lmtransfer.models.layers.relative.layout import RelativeBlock, RelativeLayout
from lmtransfer.models.layers.stacked_linear import StackedLinear
from lmtransfer.models.layers.transformer import TransformerSettings

#: The states of the queries, and the keys that they see.
Stream = tuple[Tensor, RelativeLayout]


class RelativeBiases(nn.Module):
    """Learned biases of the queries: u for the product with keys, v with distances, s with segments.

    Dai et al. 2019, section 3.3 (u, v); Yang et al. 2019, section 2.5 (s and the two segment vectors).

    Args:
        dim: width D.
        segments: whether to create s and the two vectors for same and different segments as well.
    """

    def __init__(self, *, dim: int, segments: bool = False) -> None:
        super().__init__()
        self.content = nn.Parameter(0.02 * torch.randn(dim))
        self.position = nn.Parameter(0.02 * torch.randn(dim))
        self.segment = nn.Parameter(0.02 * torch.randn(dim)) if segments else None
        self.same_or_different = nn.Parameter(0.02 * torch.randn(2, dim)) if segments else None

    def unused_segment_term(self) -> Tensor | float:
        """Zero, with a zero gradient for the segment parameters, which rows with a single segment do not use."""
        if self.segment is None or self.same_or_different is None:
            return 0.0
        return 0.0 * (self.segment.sum() + self.same_or_different.sum())


class RelativeAttention(AttentionLayer):
    """Attention with the scores (q + u) k + (q + v) r, plus (q + s) e with segments; its linear layers have no biases.

    r is a projection of the sinusoids of the distance from query to key. e is the vector for the same segment or for
    different segments. A softmax depends only on the difference of these two vectors, so only the difference is
    computed.

    Args:
        dim: width D.
        num_heads: heads H; must divide ``dim``.
        dropout: probability of dropping an attention weight.
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
        """Compute relative attention.

        Args:
            queries_ND: states from which the queries are computed.
            key_value_X2D: ``self.key_value`` of the states at the keys.
            by_distance_PD: ``self.position`` of the sinusoids of ``at.distances()``.
            biases: u and v; s and the segment vectors if segments are used.
            at: which keys each query sees.

        Returns:
            (N, D).
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
        if not layout.blocks:
            return query_ND  # there are no queries
        if dtype == torch.bfloat16 and query_ND.device.type == "cpu" and layout.keys.moves is not None:
            # As in layers.attention: ragged blocks rarely repeat a shape, and each new shape needs a bfloat16 kernel.
            query_ND, key_value_X2D, by_distance_PD = query_ND.float(), key_value_X2D.float(), by_distance_PD.float()
        counts_segments = biases.segment is not None and any(block.differs is not None for block in at.blocks)
        content_D = biases.content if counts_segments else biases.content + biases.unused_segment_term()
        queries_u = to_blocks(_biased(query_ND, content_D, width), layout.queries)
        queries_v = to_blocks(_biased(query_ND, biases.position, width), layout.queries)
        keys_values = to_blocks(key_value_X2D, layout.keys)
        if biases.segment is not None and counts_segments:
            slotted_s = to_blocks(_biased(query_ND, biases.segment, width), layout.queries)
        outputs = []
        for place, (block, relative) in enumerate(zip(layout.blocks, at.blocks, strict=True)):
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
        return from_blocks(output, layout.queries)

    def _add_positions(self, scores_GHQS: Tensor, query: Tensor, row_PD: Tensor, relative: RelativeBlock) -> Tensor:
        """Add (q + v) r to the scores; ``row_PD`` holds the block's distances."""
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
    """Compute sines, then cosines of the distances at ``dim / 2`` wavelengths, (P, D) float32.

    Vaswani et al. 2017, section 3.5, in the order of Transformer-XL's code: all sines come before all cosines.
    """
    exponents = torch.arange(0, dim, 2, device=distances_P.device, dtype=torch.float32) / dim
    angles = distances_P.float()[:, None] / 10000.0**exponents
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :dim]


def add_shifted(scores_GHQS: Tensor, by_distance_HGQP: Tensor, offset: int) -> Tensor:
    """Add entry ``offset - i + j`` of row i of ``by_distance_HGQP`` to the score of query i and key j.

    This is the relative shift of Dai et al. 2019, appendix B, as a view with other strides, so it needs no copy or
    gather. It changes ``scores_GHQS`` in place. If the entry lies outside the row, the entry of a neighboring row is
    added; the caller must hide such keys.
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
        if distances == grad.shape[-1] + 1:  # there are no gaps between the rows of the view
            by_distance = grad.new_empty(ctx.shape)
            flat = by_distance.view(*ctx.shape[:2], queries * distances)
            flat[..., : ctx.offset] = 0
            flat[..., ctx.offset + queries * grad.shape[-1] :] = 0
        else:
            by_distance = grad.new_zeros(ctx.shape)
        _shifted(by_distance, grad.shape[-1], ctx.offset).copy_(grad)
        return grad, by_distance, None


class RelativeLayer(nn.Module):
    """Relative attention and feed-forward, each with a residual connection and LayerNorm.

    Args:
        settings: settings of the stack; ``norm`` is "post" as published (Dai et al. 2019; Yang et al. 2019), or "pre".
        biases: biases of this layer; None if each call passes them.
    """

    def __init__(self, settings: TransformerSettings, *, biases: RelativeBiases | None) -> None:
        super().__init__()
        self.pre_norm = settings.norm == "pre"
        self.attention = RelativeAttention(
            dim=settings.dim, num_heads=settings.num_heads, dropout=settings.attention_dropout
        )
        self.biases = biases
        self.attention_norm = settings.layer_norm()
        self.feed_forward = settings.feed_forward()
        self.feed_forward_norm = settings.layer_norm()
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, streams: Sequence[Stream], keys_XD: Tensor, distances_PD: Tensor, biases: RelativeBiases | None = None
    ) -> list[Tensor]:
        """Compute the next states (N, D) of each stream.

        Args:
            streams: the states of the queries, one or two streams.
            keys_XD: the input of the layer at all keys, which are the memory and all tokens.
            distances_PD: sinusoids of the distances.
            biases: biases of the queries, if the layer has no biases.
        """
        biases = self.biases or biases
        assert biases is not None
        normed_XD = self.attention_norm(keys_XD) if self.pre_norm else keys_XD
        key_value = self.attention.key_value(normed_XD)
        by_distance_PD = self.attention.position(distances_PD)
        outputs = []
        for hidden_ND, at in streams:
            normed_ND = hidden_ND
            if self.pre_norm:
                normed_ND = self.attention_norm(hidden_ND) if at.layout.has_selected_queries else normed_XD
            attended_ND = self.dropout(self.attention(normed_ND, key_value, by_distance_PD, biases, at))
            if self.pre_norm:
                hidden_ND = hidden_ND + attended_ND
                hidden_ND = hidden_ND + self.dropout(self.feed_forward(self.feed_forward_norm(hidden_ND)))
            else:
                hidden_ND = self.attention_norm(hidden_ND + attended_ND)
                hidden_ND = self.feed_forward_norm(hidden_ND + self.dropout(self.feed_forward(hidden_ND)))
            outputs.append(hidden_ND)
        return outputs
