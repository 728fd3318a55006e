"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

Shape legend: D width.
"""

from __future__ import annotations

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.layers.building_blocks import Activation
from lmtransfer.models.roberta import RobertaEncoder


class DistilBertEncoder(RobertaEncoder):
    """BERT without segments and pooler, like RoBERTa, with half the layers; the original was distilled from BERT.

    Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``), and there is no distillation:
    load published weights into this encoder, or pretrain it like any other.
    """

    family_head = FamilyHead(token="first", hidden_activation="relu")

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        max_length: Count = 512,
        norm_eps: Positive = 1e-12,
        activation: Activation = "gelu",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            dim=dim,
            num_layers=num_layers,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            max_length=max_length,
            norm_eps=norm_eps,
            activation=activation,
            dropout=dropout,
            attention_dropout=attention_dropout,
        )
