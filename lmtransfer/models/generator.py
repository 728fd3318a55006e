"""A smaller encoder that may share another encoder's embeddings: ELECTRA's generator (Clark et al. 2020, section 3.2).

Shape legend: T tokens, D width of the encoder, E width of its embeddings, W width of the generator.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from torch import nn
from typing_extensions import override

from lmtransfer.config.types import Count
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, OutputPositions
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.models.transformer import LayerStack, TransformerEncoder

#: Width of a head if the generator is at least that wide (google-research/electra, pretrain/pretrain_helpers.py).
_HEAD_DIM = 64


class GeneratorShape(NamedTuple):
    """The size of a generator."""

    dim: int
    num_heads: int
    hidden_dim: int


def generator_shape(*, dim: int, hidden_dim: int, size: float) -> GeneratorShape:
    """Compute the shape of the generator for an encoder of width ``dim``.

    The width is ``size * dim``, rounded to an even number. A head is at least 64 wide (or there is one head), and the
    number of heads is the largest that divides the width into even head widths. The ratio of the feed-forward width to
    the width is preserved.
    """
    width = max(2, 2 * round(dim * size / 2))
    heads = next(n for n in range(max(1, width // _HEAD_DIM), 0, -1) if width % (2 * n) == 0)
    return GeneratorShape(width, heads, max(1, hidden_dim * width // dim))


Settings = TypeVar("Settings", bound=Any)


def generator_settings(settings: Settings, *, size: float, copied_layers: bool) -> Settings:
    """Return the settings of the generator's stack for those of the encoder's stack, a dataclass."""
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
    """An encoder over the embeddings of another encoder, with its own projection and its own layers.

    Shared embeddings are not a submodule of this module: they are trained, saved and moved with the other encoder.
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
        """The input embedding: its own copy with ``own_embeddings``, else that of the encoder."""
        return self._embeddings[0].token

    @override
    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        self.check_length(batch)
        embedded_TD = self.project(self._embeddings[0](batch.tokens_T, batch.positions_T, batch.segments_T))
        return EncoderOutput(layers=self.stack(embedded_TD, batch, output_positions, causal=self.is_causal))
