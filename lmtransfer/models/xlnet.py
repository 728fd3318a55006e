"""XLNet (Yang et al. 2019, https://arxiv.org/abs/1906.08237), with its two streams of attention.

The tokens to predict and their order come from ``objectives.corruption.permutation``. The attention mask that follows
from this order (the permutation mask) is part of ``RelativeLayout`` in ``models.layers.relative_attention``.

Shape legend: T tokens, N output positions, R real sequences, M memory rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount, WholeLength
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import EncoderOutput, FamilyHead, OutputPositions
from lmtransfer.models.layers.building_blocks import Activation, Dropout, normal_
from lmtransfer.models.relative_transformer import RelativeEncoder, RelativeStack, keys_of
from lmtransfer.models.transformer import NormPlace, TransformerSettings


class TwoStreamStack(RelativeStack):
    """A ``RelativeStack`` with a second stream of attention for pretraining (section 2.3).

    The content stream reads the tokens. The query stream predicts tokens that it does not see: its states start from
    one learned vector, and read the states of the content stream at the tokens that come earlier in the order.
    """

    def two_stream(
        self,
        embedded_TD: Tensor,
        query_D: Tensor,
        batch: PackedBatch,
        *,
        order_T: Tensor,
        output_positions: OutputPositions,
        recurrent_state: tuple[Tensor, ...] | None,
    ) -> EncoderOutput:
        """Return the layers of the content stream, (T, D) each, and the last layer of the query stream, (N, D).

        The last layer computes only the query stream.

        Args:
            query_D: initial state of the query stream, the same at each output position.
        """
        embedded_TD = self.residual.begin(embedded_TD)
        keys = keys_of(batch, recurrent_state)
        segments_T = None if batch.one_segment or not self.segments else batch.segments_T
        content = self.layout(keys, segments_T, order_T)
        queries = self.layout_of_reads(keys, batch, output_positions, segments_T, order_T)
        distances_PD = self.distances(content, embedded_TD)
        outputs, memory = [embedded_TD], list[Tensor]()
        query_ND = query_D.to(embedded_TD.dtype).expand(len(output_positions.positions_N), -1)
        for depth, layer in enumerate(self.layers):
            keys_XD = self.with_memory(keys, recurrent_state, depth, outputs[-1], memory)
            streams = [(query_ND, queries), (outputs[-1], content)][: 1 if layer is self.layers[-1] else 2]
            query_ND, *after = layer(streams, keys_XD, distances_PD, self.biases)
            outputs += after
        last_ND = self.dropout(self.residual.end(self.final_norm(query_ND)))
        return EncoderOutput((*outputs, last_ND), tuple(memory) if self.memory_length else None)


class XlnetEncoder(RelativeEncoder):
    """A bidirectional transformer with relative positions, relative segments and a memory.

    Pretraining uses ``two_stream``, so that predictions do not see their targets. The memory works as in
    ``TransformerXlEncoder``, and belongs to segment 0. The classifier reads the last token of a sequence. In the
    published model, this is [CLS], because sequences end in "[SEP] [CLS]". Here, it is the last [SEP], because
    sequences have the same special tokens as in BERT. Both tokens see the whole sequence.

    Where we differ from the published code: we do not reverse half of each batch, the memory holds whole rows, and
    there is no dropout inside the feed-forward layers.

    Args:
        max_length: maximum sequence length in tokens, excluding the memory.
        num_segments: number of segment ids; 1 means no segments. Above 1, the value does not matter, because attention
            depends only on whether two tokens have the same segment.
        memory_length: maximum number of tokens in the memory; 0 for no memory.
        clamp_length: distance to which larger distances are reduced; None for no limit.
    """

    attention = "bidirectional"
    has_two_streams = True
    stack: TwoStreamStack
    family_head = FamilyHead(token="last", hidden_activation="tanh")

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        max_length: Count = 512,
        num_segments: SmallCount = 2,
        memory_length: WholeLength = 384,
        clamp_length: WholeLength | None = None,
        norm: NormPlace = "post",
        norm_eps: Positive = 1e-12,
        activation: Activation = "gelu",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
    ) -> None:
        super().__init__(
            dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size, num_segments=num_segments
        )
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.query = nn.Parameter(torch.empty(dim).normal_(std=0.02))
        self.stack = TwoStreamStack(
            TransformerSettings(dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout),
            num_layers=num_layers,
            causal=False,
            own_biases=True,
            segments=num_segments > 1,
            memory_length=memory_length,
            clamp_length=clamp_length,
        )
        self.dropout = Dropout(dropout)
        self.apply(normal_)

    @override
    def embed(self, batch: PackedBatch) -> Tensor:
        # A plain pass does not use the query vector; this term gives it a gradient of 0.
        return self.dropout(self.token_embedding(batch.tokens_T) + 0.0 * self.query)

    @override
    def two_stream(
        self, batch: PackedBatch, *, order_T: Tensor, output_positions: OutputPositions, recurrent_state: Any = None
    ) -> EncoderOutput:
        """Run both streams; the query stream also sees the memory."""
        self.check_length(batch)
        return self.stack.two_stream(
            self.embed(batch),
            self.dropout(self.query),
            batch,
            order_T=order_T,
            output_positions=output_positions,
            recurrent_state=recurrent_state,
        )
