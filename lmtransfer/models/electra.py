"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555): the discriminator and its generator.

Shape legend: T tokens, N output positions, D width, E width of the embeddings.
"""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import FamilyHead
from lmtransfer.models.generator import GeneratorEncoder, generator_settings
from lmtransfer.models.layers.building_blocks import Activation, InputEmbeddings, truncated_normal_
from lmtransfer.models.transformer import NormPlace, TransformerEncoder, TransformerSettings, TransformerStack


class ElectraEncoder(TransformerEncoder):
    """BERT's layers over embeddings of width E, with a projection from E to D if the widths differ.

    Token, position and segment embeddings and their LayerNorm have width E; the generator shares all of them or none.
    Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``).

    Args:
        norm: "post" is the published model; "pre" normalizes the input of each branch and the output of the last
            layer. The embeddings are normalized in both cases.
    """

    attention = "bidirectional"
    attentions = ("bidirectional", "causal")
    family_head = FamilyHead(token="first", hidden_activation="gelu")

    def __init__(
        self,
        *,
        vocab_size: Count,
        embedding_dim: Count,
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
    ) -> None:
        super().__init__(
            dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size, num_segments=num_segments
        )
        self.embeddings = InputEmbeddings(
            vocab_size, embedding_dim, max_length, num_segments, norm=True, norm_eps=norm_eps, dropout=dropout
        )
        self.project: nn.Module = nn.Linear(embedding_dim, dim) if embedding_dim != dim else nn.Identity()
        self._settings = TransformerSettings(
            dim, num_heads, hidden_dim, norm, norm_eps, activation, dropout, attention_dropout
        )
        self.stack = TransformerStack(self._settings, num_layers=num_layers)
        self.apply(truncated_normal_)

    @override
    def generator(self, *, size: float, own_embeddings: bool = False, copied_layers: bool = False) -> GeneratorEncoder:
        settings = generator_settings(self._settings, size=size, copied_layers=copied_layers)
        stack = TransformerStack(settings, num_layers=self.num_layers)
        stack.apply(truncated_normal_)
        generator = GeneratorEncoder(
            encoder=self, stack=stack, dim=settings.dim, bias=True, own_embeddings=own_embeddings
        )
        if copied_layers:
            stack.load_state_dict(self.get_submodule("stack").state_dict())
            generator.project.load_state_dict(self.project.state_dict())
        return generator

    @override
    def embed(self, batch: PackedBatch) -> Tensor:
        return self.project(super().embed(batch))
