"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692).

Shape legend: T tokens, N output positions, D width.
"""

from __future__ import annotations

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.bert import Pooler
from lmtransfer.models.layers.building_blocks import Activation, InputEmbeddings, truncated_normal_
from lmtransfer.models.transformer import NormPlace, TransformerEncoder, TransformerSettings, TransformerStack

#: Number of unused rows at the beginning of published position tables.
PUBLISHED_OFFSET = 2


class RobertaEncoder(TransformerEncoder):
    """BERT without segments and pooler; RoBERTa differs from BERT mainly in training (``experiment=roberta_base``).

    Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``), and there is no padding.

    Args:
        norm: "post" is the published model; "pre" has the structure of RobertaPreLayerNorm in Hugging Face
            transformers, which also normalizes the embeddings.
        positions_from_two: begin the position table with two unused rows, as in fairseq, where the first position is
            the padding id plus one.
        type_row: add one learned vector to every token, as in Hugging Face transformers, where RoBERTa has BERT's
            segment embedding with one row.
        pooler: add BERT's tanh layer over [CLS], which some published checkpoints contain; the family's published
            classifier does not use it.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")
    family_head = FamilyHead(token="first", hidden_activation="tanh")

    def __init__(
        self,
        *,
        vocab_size: Count,
        dim: Count,
        num_layers: SmallCount,
        num_heads: SmallCount,
        hidden_dim: Count,
        max_length: Count = 512,
        norm: NormPlace = "post",
        norm_eps: Positive = 1e-5,
        activation: Activation = "gelu",
        dropout: DropoutProb = 0.1,
        attention_dropout: DropoutProb = 0.0,
        positions_from_two: bool = False,
        type_row: bool = False,
        pooler: bool = False,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        self.embeddings = InputEmbeddings(
            vocab_size,
            dim,
            max_length,
            1,
            norm=True,
            norm_eps=norm_eps,
            dropout=dropout,
            position_offset=PUBLISHED_OFFSET if positions_from_two else 0,
            type_row=type_row,
        )
        self.stack = TransformerStack(
            TransformerSettings(dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout),
            num_layers=num_layers,
        )
        self.pooler = Pooler(dim) if pooler else None
        self.apply(truncated_normal_)
