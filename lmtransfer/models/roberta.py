"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692).

Shape legend: T tokens, N read positions, D width.
"""

from __future__ import annotations

from lmtransfer.layers.embeddings import InputEmbeddings
from lmtransfer.layers.feed_forward import Activation
from lmtransfer.layers.initialisation import truncated_normal_
from lmtransfer.layers.transformer import NormPlace, TransformerSettings
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.bert import Pooler
from lmtransfer.models.transformer import TransformerEncoder, TransformerStack

#: Rows at the front of the position tables of published checkpoints that no token uses.
PUBLISHED_OFFSET = 2


class RobertaEncoder(TransformerEncoder):
    """BERT without segments and pooler; what makes RoBERTa is how it is trained (``experiment=roberta_base``).

    Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``), and there is no padding.

    Args:
        vocab_size: rows of the token embedding.
        dim: width D.
        num_layers: transformer layers.
        num_heads: attention heads; must divide ``dim``.
        hidden_dim: width of the feed-forward layers.
        max_length: longest sequence in tokens.
        norm: "post" is the published model; "pre" is shaped as RobertaPreLayerNorm of Hugging Face transformers, which
            normalises the embeddings too.
        norm_eps: LayerNorm's epsilon.
        activation: of the feed-forward layers.
        dropout: of embeddings and of each branch.
        attention_dropout: of attention weights; the paper has 0.1.
        positions_from_two: the position table has two rows at its front that no token uses, as in fairseq, which
            counts positions from its padding id on.
        type_row: one learnt row is added to every token, as in Hugging Face transformers, which gives RoBERTa BERT's
            segment embedding with one row.
        pooler: have BERT's tanh layer over [CLS], which some published checkpoints hold; the family's classifier does
            not read it.

    Raises:
        ConfigError: ``num_heads`` does not divide ``dim``.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")
    family_head = FamilyHead(token="first", hidden="tanh")

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        max_length: int = 512,
        norm: NormPlace = "post",
        norm_eps: float = 1e-5,
        activation: Activation = "gelu",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        positions_from_two: bool = False,
        type_row: bool = False,
        pooler: bool = False,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        self.embeddings = InputEmbeddings(
            vocab_size=vocab_size,
            dim=dim,
            max_length=max_length,
            num_segments=1,
            norm=True,
            norm_eps=norm_eps,
            dropout=dropout,
            position_offset=PUBLISHED_OFFSET if positions_from_two else 0,
            type_row=type_row,
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
        self.pooler = Pooler(dim) if pooler else None
        self.apply(truncated_normal_)
