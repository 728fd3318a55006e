"""XLNet (Yang et al. 2019, https://arxiv.org/abs/1906.08237).

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
from lmtransfer.models.relative_stack import RelativeEncoder, RelativeStack
from lmtransfer.models.transformer import NormPlace, TransformerSettings


class XlnetEncoder(RelativeEncoder):
    """A bidirectional transformer with relative positions, relative segments and a memory.

    Pretraining uses ``two_stream``: queries that do not see the tokens to predict. The memory is that of
    ``TransformerXlEncoder``; it belongs to segment 0. The classifier reads the last token of a sequence. In the
    published model, this is [CLS], because sequences end in "[SEP] [CLS]". Here, it is the last [SEP], because
    sequences have the same special tokens as in BERT. Both tokens see the whole sequence.

    Where we differ from the published code: we do not reverse half of each batch, the memory holds whole rows, and
    there is no dropout inside the feed-forward layers.

    Args:
        max_length: maximum sequence length in tokens, excluding the memory.
        num_segments: number of segment ids; 1 means no segments. Any number works, because attention only depends on
            whether two segments are the same.
        memory_length: maximum number of tokens in the memory; 0 for no memory.
        clamp_length: larger distances are treated as this distance; None for no limit.
    """

    attention = "bidirectional"
    has_two_streams = True
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
        self.query = nn.Parameter(0.02 * torch.randn(dim))
        self.stack = RelativeStack(
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
        # Adding 0 gives the query vector, which a plain pass does not use, a (zero) gradient.
        return self.dropout(self.token_embedding(batch.tokens_T) + 0.0 * self.query)

    @override
    def two_stream(
        self, batch: PackedBatch, *, order_T: Tensor, output_positions: OutputPositions, recurrent_state: Any = None
    ) -> EncoderOutput:
        """Start all queries from one learned vector instead of their tokens; they see the memory."""
        self.check_length(batch)
        return self.stack.two_stream(
            self.embed(batch),
            self.dropout(self.query),
            batch,
            order_T=order_T,
            output_positions=output_positions,
            recurrent_state=recurrent_state,
        )
