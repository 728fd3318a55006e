"""ELECTRA (Clark et al. 2020, https://arxiv.org/abs/2003.10555): the discriminator and its generator.

Shape legend: T tokens, N output positions, D width, E width of the embeddings.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, DropoutProb, Positive, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, OutputPositions
from lmtransfer.models.layers.building_blocks import Activation, InputEmbeddings, truncated_normal_
from lmtransfer.models.transformer import (
    LayerStack,
    NormPlace,
    TransformerEncoder,
    TransformerSettings,
    TransformerStack,
)

#: Minimum width of a head, unless the generator is narrower (google-research/electra, pretrain/pretrain_helpers.py).
_HEAD_DIM = 64


class GeneratorShape(NamedTuple):
    """The widths of a generator and its number of attention heads."""

    dim: int
    num_heads: int
    hidden_dim: int


def generator_shape(*, dim: int, hidden_dim: int, size: float) -> GeneratorShape:
    """Compute the shape of the generator for an encoder of width ``dim``.

    The width is ``size * dim``, rounded to an even number. There are as many heads as possible with an even width of at
    least 64, or one head if the width is below 128. The ratio of the feed-forward width to the width is preserved.
    """
    width = max(2, 2 * round(dim * size / 2))
    heads = next(n for n in range(max(1, width // _HEAD_DIM), 0, -1) if width % (2 * n) == 0)
    return GeneratorShape(width, heads, max(1, hidden_dim * width // dim))


Settings = TypeVar("Settings", bound=Any)


def generator_settings(settings: Settings, *, size: float, copied_layers: bool) -> Settings:
    """Return the settings of the generator's layers, given those of the encoder's layers (a dataclass)."""
    shape = generator_shape(dim=settings.dim, hidden_dim=settings.hidden_dim, size=size)
    differ = [
        f"{name}={own} where the encoder has {other}"
        for name, own in shape._asdict().items()
        if own != (other := getattr(settings, name))
    ]
    if copied_layers and differ:
        raise ConfigError(
            f"generator_start=encoder copies the encoder's layers into the generator, which would have "
            f"{', '.join(differ)}: use generator_size=1.0 and heads of width {_HEAD_DIM}, or generator_start=random"
        )
    return replace(settings, **shape._asdict())


class GeneratorEncoder(Encoder):
    """A generator, with its own projection and layers over another encoder's embeddings (Clark et al. 2020, 3.2).

    Shared embeddings are not a submodule of the generator: they are trained, saved and moved with the other encoder.
    """

    compiles = True
    family_head = FamilyHead(token="first")

    def __init__(
        self,
        *,
        encoder: TransformerEncoder,
        stack: LayerStack,
        dim: Count,
        bias: bool,
        own_embeddings: bool = False,
    ) -> None:
        super().__init__(
            dim=dim,
            num_layers=encoder.num_layers,
            max_length=encoder.max_length,
            vocab_size=encoder.vocab_size,
            num_segments=encoder.num_segments,
        )
        embeddings = encoder.embeddings
        width = embeddings.token.embedding_dim
        self.attention = encoder.attention
        self.project: nn.Module = nn.Linear(width, dim, bias=bias) if width != dim else nn.Identity()
        self.project.apply(truncated_normal_)
        self.stack = stack
        if own_embeddings:
            embeddings = copy.deepcopy(embeddings)
            self.embeddings = cast(nn.Module, embeddings)
        self._embeddings = (embeddings,)  # a tuple, so that PyTorch does not register these weights here too

    @property
    def token_embedding(self) -> nn.Embedding:
        """The input embedding: the generator's own with ``own_embeddings``, otherwise that of the encoder."""
        return self._embeddings[0].token

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        embedded_TD = self.project(self._embeddings[0](batch.tokens_T, batch.positions_T, batch.segments_T))
        return EncoderOutput(layers=self.stack(embedded_TD, batch, output_positions, causal=self.is_causal))


class ElectraEncoder(TransformerEncoder):
    """BERT's layers over embeddings of width E, which a linear layer projects to D if the widths differ.

    The token, position and segment embeddings and their LayerNorm have width E; the generator shares all of them or
    none. Where we differ from the paper: ``attention_dropout`` is 0 (see ``SelfAttention``).

    Args:
        norm: "post" is the published model; "pre" normalizes the input of each branch and the output of the last
            layer. Both normalize the embeddings.
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
