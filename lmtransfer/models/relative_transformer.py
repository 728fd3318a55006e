"""Transformer layers with relative positions and a memory, and their stacks: the basis of Transformer-XL and XLNet.

Shape legend: T tokens, N output positions, X packed keys (of each sequence: its memory, then its tokens), R real
sequences, M memory rows, P distances, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, EncoderOutput, OutputPositions
from lmtransfer.models.layers.building_blocks import Dropout, ResidualStream
from lmtransfer.models.layers.relative_attention import (
    Keys,
    RelativeAttention,
    RelativeBiases,
    RelativeLayout,
    sinusoids,
)
from lmtransfer.models.transformer import TransformerSettings

#: The states of some queries, and the keys that these queries see.
Stream = tuple[Tensor, RelativeLayout]


class RelativeLayer(nn.Module):
    """Relative attention and feed-forward, each with a residual connection and LayerNorm (post-norm as published).

    Args:
        biases: biases of this layer; None if each call passes biases.
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
        """Compute the next states of each stream, (N, D).

        Args:
            keys_XD: states at the keys, which all streams share.
            distances_PD: sinusoids of the distances between queries and keys.
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


class RelativeStack(nn.Module):
    """``num_layers`` relative transformer layers, with a final LayerNorm if they are pre-norm.

    The memory is a tuple of ``num_layers`` tensors (R, M, D): the inputs of each layer at the last tokens of each real
    sequence, detached. M grows up to ``memory_length``. If the sequences of a batch differ in length, each keeps only
    as many rows as the shortest allows, so that the memory is one tensor per layer.

    Args:
        own_biases: whether each layer has its own biases (XLNet); otherwise all layers share two bias vectors, as in
            the equations of Dai et al. 2019, section 3.3.
        segments: whether to use relative segments; this requires ``own_biases``.
    """

    def __init__(
        self,
        settings: TransformerSettings,
        *,
        num_layers: int,
        causal: bool,
        own_biases: bool,
        segments: bool,
        memory_length: int,
        clamp_length: int | None,
        same_length: bool = False,
    ) -> None:
        super().__init__()
        dim = settings.dim
        self.dim, self.causal, self.segments = dim, causal, segments
        self.memory_length, self.clamp_length, self.same_length = memory_length, clamp_length, same_length
        self.biases = None if own_biases else RelativeBiases(dim=dim)
        self.layers = nn.ModuleList(
            RelativeLayer(settings, biases=RelativeBiases(dim=dim, segments=segments) if own_biases else None)
            for _ in range(num_layers)
        )
        self.final_norm = settings.final_norm()
        self.residual = ResidualStream()
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        embedded_TD: Tensor,
        batch: PackedBatch,
        *,
        recurrent_state: tuple[Tensor, ...] | None,
        output_positions: OutputPositions | None,
    ) -> EncoderOutput:
        """Return the embeddings and the outputs of all layers; the last output only at ``output_positions``, if any."""
        embedded_TD = self.residual.begin(embedded_TD)
        keys = keys_of(batch, recurrent_state)
        segments_T = None if batch.one_segment or not self.segments else batch.segments_T
        everywhere = self.layout(keys, segments_T)
        outputs, distances_PD = [embedded_TD], self.distances(everywhere, embedded_TD)
        memory: list[Tensor] = []
        for depth, layer in enumerate(self.layers):
            hidden_TD, at = outputs[-1], everywhere
            keys_XD = self.with_memory(keys, recurrent_state, depth, hidden_TD, memory)
            if output_positions is not None and not self.causal and layer is self.layers[-1]:
                at = self.layout_of_reads(keys, batch, output_positions, segments_T)
                hidden_TD = hidden_TD.index_select(0, output_positions.positions_N)
            outputs += layer([(hidden_TD, at)], keys_XD, distances_PD, self.biases)
        last = self.residual.end(self.final_norm(outputs.pop()))
        if output_positions is not None and self.causal:
            last = last.index_select(0, output_positions.positions_N)
        return EncoderOutput((*outputs, self.dropout(last)), tuple(memory) if self.memory_length else None)

    def with_memory(
        self,
        keys: Keys,
        recurrent_state: tuple[Tensor, ...] | None,
        depth: int,
        hidden_TD: Tensor,
        memory: list[Tensor],
    ) -> Tensor:
        """Return the keys of layer ``depth``, and append the last ones to ``memory``, the memory for the next batch."""
        keys_XD = keys.with_memory(None if recurrent_state is None else recurrent_state[depth], hidden_TD)
        if self.memory_length:
            memory.append(keys.last_keys(keys_XD, self.memory_length))
        return keys_XD

    def layout(self, keys: Keys, segments_T: Tensor | None, order_T: Tensor | None = None) -> RelativeLayout:
        """Return the layout in which all tokens are queries."""
        num_seen = max(self.memory_length, 1) if self.same_length else None
        return RelativeLayout.of(keys, causal=self.causal, num_seen=num_seen, segments_T=segments_T, order_T=order_T)

    def layout_of_reads(
        self,
        keys: Keys,
        batch: PackedBatch,
        output_positions: OutputPositions,
        segments_T: Tensor | None,
        order_T: Tensor | None = None,
    ) -> RelativeLayout:
        """Return the layout in which only the output positions are queries."""
        return RelativeLayout.of(
            keys,
            counts=output_positions.counts,
            positions_N=batch.positions_T.index_select(0, output_positions.positions_N),
            segments_T=segments_T,
            order_T=order_T,
            attends_to_itself=False,
        )

    def distances(self, at: RelativeLayout, like: Tensor) -> Tensor:
        """Return the sinusoids of the distances between queries and keys, (P, D), in the dtype of ``like``."""
        distances_P = at.distances()
        if self.clamp_length is not None:
            distances_P = distances_P.clamp(-self.clamp_length, self.clamp_length)
        return self.dropout(sinusoids(distances_P, self.dim).to(like.dtype))


def keys_of(batch: PackedBatch, recurrent_state: tuple[Tensor, ...] | None) -> Keys:
    """Return the keys of a batch, with the memory of its sequences."""
    if recurrent_state is not None and len(recurrent_state[0]) != batch.num_real:
        raise ValueError(f"the memory has {len(recurrent_state[0])} sequences, but the batch has {batch.num_real}")
    return Keys.of(batch, memory=0 if recurrent_state is None else recurrent_state[0].shape[1])


class RelativeEncoder(Encoder):
    """Token embeddings and a ``RelativeStack``, whose memory is the recurrent state.

    A subclass creates ``token_embedding``, ``stack`` and ``dropout`` in ``__init__``.
    """

    token_embedding: nn.Embedding
    stack: RelativeStack
    dropout: Dropout

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return the input of the layers, (T, D)."""
        raise NotImplementedError

    @override
    def set_memory(self, length: int, *, clamp_length: int | None, same_length: bool) -> None:
        self.stack.memory_length, self.stack.same_length = length, same_length
        self.stack.clamp_length = clamp_length or self.stack.clamp_length

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        return self.stack(self.embed(batch), batch, recurrent_state=recurrent_state, output_positions=output_positions)
