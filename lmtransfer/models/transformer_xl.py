"""Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860).

Shape legend: T tokens, R real sequences, M memory rows, D width.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount, WholeLength
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.layers.building_blocks import Activation, Dropout, normal_
from lmtransfer.models.relative_transformer import RelativeEncoder, RelativeStack
from lmtransfer.models.transformer import NormPlace, TransformerSettings


class TransformerXlEncoder(RelativeEncoder):
    """A causal transformer with relative positions, in which each layer also sees a memory of the previous segment.

    The memory is the recurrent state: the inputs of each layer at the last ``memory_length`` tokens, (R, M, D) per
    layer. No gradient flows through the memory. Without a recurrent state, the encoder is stateless.

    Where we differ from the published code: there is one softmax over the vocabulary instead of an adaptive one, and
    there is no dropout inside the feed-forward layers.

    Args:
        max_length: maximum sequence length in tokens, excluding the memory.
        memory_length: maximum number of tokens in the memory; 0 for no memory.
        clamp_length: distance to which larger distances are reduced; None for no limit.
        same_length: each token sees at most ``memory_length`` tokens, including itself.
    """

    attention = "causal"
    family_head = FamilyHead(token="last")

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        max_length: Count = 512,
        memory_length: WholeLength = 150,
        clamp_length: WholeLength | None = None,
        same_length: bool = False,
        norm: NormPlace = "post",
        norm_eps: Positive = 1e-5,
        activation: Activation = "relu",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        if same_length and not memory_length:
            raise ConfigError("model.same_length=true needs a memory, but model.memory_length=0: raise it")
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.stack = RelativeStack(
            TransformerSettings(dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout),
            num_layers=num_layers,
            causal=True,
            own_biases=False,
            segments=False,
            memory_length=memory_length,
            clamp_length=clamp_length,
            same_length=same_length,
        )
        self.dropout = Dropout(dropout)
        self.apply(normal_)

    @override
    def embed(self, batch: PackedBatch) -> Tensor:
        return self.dropout(self.token_embedding(batch.tokens_T) * math.sqrt(self.dim))
