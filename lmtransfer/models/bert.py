"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).

Shape legend: T tokens, N output positions, B sequences, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.layers.building_blocks import Activation, InputEmbeddings, truncated_normal_
from lmtransfer.models.transformer import NormPlace, TransformerEncoder, TransformerSettings, TransformerStack


class Pooler(nn.Module):
    """BERT's pooler: a dense tanh layer on the state of [CLS]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)

    def forward(self, first_BD: Tensor) -> Tensor:
        """Apply the layer, (B, D) -> (B, D)."""
        return torch.tanh(self.dense(first_BD))


def pooler_head(pooler: bool) -> FamilyHead:
    """Describe the published classifier of BERT and ALBERT, which reads the pooler or a new layer of the same form."""
    return (
        FamilyHead(token="first", uses_pooler=True) if pooler else FamilyHead(token="first", hidden_activation="tanh")
    )


class BertEncoder(TransformerEncoder):
    """A bidirectional transformer encoder.

    Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``), and there is no padding.

    Args:
        norm: "post" is the published model; "pre" has the structure of MegatronBert (Shoeybi et al. 2019), which trains
            at higher learning rates.
        pooler: add the pooler; without a pooler, classifiers get a new layer of the same form.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")

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
        norm: NormPlace = "post",
        norm_eps: Positive = 1e-12,
        activation: Activation = "gelu",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
        pooler: bool = True,
    ) -> None:
        super().__init__(
            dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size, num_segments=num_segments
        )
        self.embeddings = InputEmbeddings(
            vocab_size, dim, max_length, num_segments, norm=norm == "post", norm_eps=norm_eps, dropout=dropout
        )
        self.stack = TransformerStack(
            TransformerSettings(dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout),
            num_layers=num_layers,
        )
        self.pooler = Pooler(dim) if pooler else None
        self.family_head = pooler_head(pooler)
        self.apply(truncated_normal_)
