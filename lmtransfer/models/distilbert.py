"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

Shape legend: T tokens, N read positions, D width.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.layers.embeddings import InputEmbeddings
from lmtransfer.layers.feed_forward import Activation
from lmtransfer.layers.self_attention import truncated_normal_
from lmtransfer.models.base import Direction, EncoderOutput, FamilyHead, Reads
from lmtransfer.models.transformer import TransformerStack, check_heads, check_length


class DistilBertEncoder(nn.Module):
    """BERT without segments and pooler, half as deep; published, it was taught by BERT.

    Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``), and no teacher is computed here:
    it is a shape for published weights, or to be pretrained as any other.

    Args:
        vocab_size: rows of the token embedding.
        dim: width D.
        num_layers: transformer layers.
        num_heads: attention heads; must divide ``dim``.
        hidden_dim: width of the feed-forward layers.
        max_length: longest sequence in tokens.
        norm_eps: LayerNorm's epsilon.
        activation: of the feed-forward layers.
        dropout: of embeddings and of each branch.
        attention_dropout: of attention weights; the paper has 0.1.

    Raises:
        ConfigError: ``num_heads`` does not divide ``dim``.
    """

    attention: Direction = "bidirectional"
    family_head = FamilyHead(token="first", hidden="relu")
    num_segments = 1
    pooler = None

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        max_length: int = 512,
        norm_eps: float = 1e-12,
        activation: Activation = "gelu",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim=dim, num_heads=num_heads)
        self.dim, self.num_layers, self.max_length, self.vocab_size = dim, num_layers, max_length, vocab_size
        self.embeddings = InputEmbeddings(
            vocab_size=vocab_size,
            dim=dim,
            max_length=max_length,
            num_segments=1,
            norm=True,
            norm_eps=norm_eps,
            dropout=dropout,
        )
        self.stack = TransformerStack(
            num_layers=num_layers,
            dim=dim,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            norm="post",
            norm_eps=norm_eps,
            activation=activation,
            dropout=dropout,
            attention_dropout=attention_dropout,
            causal=False,
        )
        self.apply(truncated_normal_)

    @property
    def token_embedding(self) -> nn.Embedding:
        """The input embedding, for objectives that tie their output to it."""
        return self.embeddings.token

    def forward(self, batch: PackedBatch, carry: Any = None, reads: Reads | None = None) -> EncoderOutput:
        """Encode; see ``models.base.Encoder``."""
        check_length(batch, self.max_length)
        return EncoderOutput(layers=self.stack(self.embeddings(batch), batch, reads))
