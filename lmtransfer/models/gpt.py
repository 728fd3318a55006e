"""GPT: the causal transformer (Radford et al. 2018, 2019), as an encoder.

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, OutputPositions
from lmtransfer.models.layers.building_blocks import Activation, InputEmbeddings, truncated_normal_
from lmtransfer.models.transformer import (
    NormPlace,
    TransformerEncoder,
    TransformerLayer,
    TransformerSettings,
    TransformerStack,
)


class GptEncoder(TransformerEncoder):
    """A causal transformer: BERT's layers, in which a token sees only itself and the tokens before it.

    The defaults are those of GPT-2: pre-norm and tanh GELU. With pre-norm, the initial weights of residual projections
    are divided by sqrt(2 L), where L is the number of layers.

    Args:
        norm: "pre" as in GPT-2, or "post" as in GPT, which, unlike BERT, does not normalize the embeddings.
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
        max_length: Count = 1024,
        norm: NormPlace = "pre",
        norm_eps: Positive = 1e-5,
        activation: Activation = "gelu_tanh",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        self.embeddings = InputEmbeddings(
            vocab_size, dim, max_length, 1, norm=False, norm_eps=norm_eps, dropout=dropout
        )
        self.stack = TransformerStack(
            TransformerSettings(dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout),
            num_layers=num_layers,
        )
        self.apply(truncated_normal_)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, TransformerLayer) and norm == "pre":
                    module.attention.output.weight.div_(math.sqrt(2 * num_layers))
                    module.feed_forward.contract.weight.div_(math.sqrt(2 * num_layers))


class BiGptEncoder(Encoder):
    """Two GPTs with one token embedding; the backward GPT reads each sequence from its end.

    The features of a token are those of the forward GPT, which sees the token and the tokens before it, followed by
    those of the backward GPT, which sees the token and the tokens after it. The directions do not mix in any layer.
    Each direction has its own position table, and counts positions from the end of the sequence at which it starts.

    Args:
        dim: width D of both directions together.
        num_heads: number of attention heads of each direction; must divide half of ``dim``.
    """

    compiles = True
    attention = "concatenated"
    family_head = FamilyHead(token="mean")

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        max_length: Count = 512,
        norm: NormPlace = "pre",
        norm_eps: Positive = 1e-5,
        activation: Activation = "gelu_tanh",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        if dim % (2 * num_heads):
            raise ConfigError(
                f"model.dim={dim} is the width of both directions together, so half of it must be a multiple of "
                f"model.num_heads={num_heads}: use a multiple of {2 * num_heads}"
            )

        def direction() -> GptEncoder:
            return GptEncoder(
                vocab_size=vocab_size,
                dim=dim // 2,
                num_layers=num_layers,
                num_heads=num_heads,
                hidden_dim=hidden_dim,
                max_length=max_length,
                norm=norm,
                norm_eps=norm_eps,
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
            )

        self.forwards, self.backwards = direction(), direction()
        self.backwards.embeddings.token = self.forwards.embeddings.token

    @property
    def token_embedding(self) -> nn.Embedding:
        """The input embedding of both directions, which ``bilm`` also uses as the output matrix."""
        return self.forwards.token_embedding

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        mirror_T = mirror_places(batch)
        mirrored = replace(batch, tokens_T=batch.tokens_T.index_select(0, mirror_T))
        ahead, back = self.forwards(batch).layers, self.backwards(mirrored).layers
        layers = [torch.cat([a, b.index_select(0, mirror_T)], dim=1) for a, b in zip(ahead, back, strict=True)]
        if output_positions is not None:
            layers[-1] = layers[-1].index_select(0, output_positions.positions_N)
        return EncoderOutput(layers=tuple(layers))


def mirror_places(batch: PackedBatch) -> Tensor:
    """Return, for each token, the index of its mirror image when each sequence is reversed, int64, (T,)."""
    starts_and_lasts = batch.cu_seqlens[:-1].long() + batch.cu_seqlens[1:].long() - 1
    lengths = batch.cu_seqlens.diff()
    sums_T = torch.repeat_interleave(starts_and_lasts, lengths, output_size=len(batch.tokens_T))
    return sums_T - torch.arange(len(sums_T), device=sums_T.device)
