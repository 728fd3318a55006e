"""GPT: the causal transformer (Radford et al. 2018, 2019), as an encoder.

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

import math

import torch

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.layers.embeddings import InputEmbeddings
from lmtransfer.models.layers.feed_forward import Activation
from lmtransfer.models.layers.initialization import truncated_normal_
from lmtransfer.models.layers.transformer import NormPlace, TransformerLayer, TransformerSettings
from lmtransfer.models.transformer import TransformerEncoder, TransformerStack


class GptEncoder(TransformerEncoder):
    """A causal transformer: the layers of BERT, in which a token sees only itself and the tokens before it.

    The defaults are those of GPT-2: pre-norm and tanh GELU. With pre-norm, the initial weights of residual projections
    are divided by sqrt(2 L), where L is the number of layers.

    Args:
        vocab_size: number of rows of the token embedding.
        dim: width D.
        num_layers: number of transformer layers.
        num_heads: number of attention heads; must divide ``dim``.
        hidden_dim: width of the feed-forward layers.
        max_length: maximum sequence length in tokens.
        norm: "pre" as in GPT-2, or "post" as in GPT (GPT does not normalize its embeddings, BERT does).
        norm_eps: epsilon of the LayerNorms.
        activation: activation of the feed-forward layers.
        dropout: dropout probability of embeddings and of each branch.
        attention_dropout: dropout probability of attention weights; 0.1 in the paper.

    Raises:
        ConfigError: ``num_heads`` does not divide ``dim``.
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
            vocab_size=vocab_size,
            dim=dim,
            max_length=max_length,
            num_segments=1,
            norm=False,
            norm_eps=norm_eps,
            dropout=dropout,
        )
        self.stack = TransformerStack(
            TransformerSettings(
                dim=dim,
                num_heads=num_heads,
                hidden_dim=hidden_dim,
                norm=norm,
                norm_eps=norm_eps,
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
            ),
            num_layers=num_layers,
        )
        self.apply(truncated_normal_)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, TransformerLayer) and norm == "pre":
                    module.attention.output.weight.div_(math.sqrt(2 * num_layers))
                    module.feed_forward.contract.weight.div_(math.sqrt(2 * num_layers))
