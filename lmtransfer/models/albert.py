"""ALBERT (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

Shape legend: T tokens, N output positions, E width of the embeddings, D width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.bert import Pooler, pooler_head
from lmtransfer.models.layers.building_blocks import Activation, InputEmbeddings, truncated_normal_
from lmtransfer.models.transformer import NormPlace, TransformerEncoder, TransformerSettings, TransformerStack

#: Which weights all layers share (Lan et al. 2020, table 4).
Sharing = Literal["all", "attention", "ffn", "none"]


class AlbertEncoder(TransformerEncoder):
    """BERT with factorized embeddings (section 3.1) and layers that share their weights.

    Args:
        embedding_dim: width E of the embeddings; a linear layer projects them to D.
        share: the weights that the layers share: "all", "attention" or "ffn" (each with the LayerNorm of its branch),
            or "none".
        norm: "post" is the published model; "pre" trains at higher learning rates. Both normalize the embeddings.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")

    def __init__(
        self,
        *,
        vocab_size: Count,
        embedding_dim: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        share: Sharing = "all",
        max_length: Count = 512,
        num_segments: SmallCount = 2,
        norm: NormPlace = "post",
        norm_eps: Positive = 1e-12,
        activation: Activation = "gelu_tanh",
        dropout: DropoutProb = 0.0,
        attention_dropout: DropoutProb = 0.0,
        pooler: bool = True,
    ) -> None:
        super().__init__(
            dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size, num_segments=num_segments
        )
        self.embeddings = InputEmbeddings(
            vocab_size, embedding_dim, max_length, num_segments, norm=True, norm_eps=norm_eps, dropout=dropout
        )
        self.projection = nn.Linear(embedding_dim, dim)
        self.stack = stack = TransformerStack(
            TransformerSettings(dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout),
            num_layers=num_layers,
        )
        share_layers(stack, share)
        self.pooler = Pooler(dim) if pooler else None
        self.family_head = pooler_head(pooler)
        self.apply(truncated_normal_)

    @override
    def embed(self, batch: PackedBatch) -> Tensor:
        return self.projection(super().embed(batch))


def share_layers(stack: TransformerStack, share: Sharing) -> None:
    """Replace the shared modules of all later layers by those of the first layer."""
    parts = {
        "all": ("attention", "attention_norm", "feed_forward", "feed_forward_norm"),
        "attention": ("attention", "attention_norm"),
        "ffn": ("feed_forward", "feed_forward_norm"),
        "none": (),
    }
    first, *layers = stack.layers
    for layer in layers:
        for part in parts[share]:
            setattr(layer, part, getattr(first, part))
