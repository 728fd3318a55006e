"""A smaller twin of an encoder that shares its embeddings: ELECTRA's generator (Clark et al. 2020, section 3.2).

Shape legend: T tokens, D width of the encoder, E width of its embeddings, W width of the twin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.layers.initialisation import truncated_normal_
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, Reads
from lmtransfer.models.transformer import Stack, TokenEmbeddings

#: Width of a head, so long as the twin has as much (google-research/electra, pretrain/pretrain_helpers.py).
_HEAD_DIM = 64


class TwinShape(NamedTuple):
    """Size of a twin.

    Attributes:
        dim: width W.
        num_heads: attention heads.
        hidden_dim: width of the feed-forward layers.
    """

    dim: int
    num_heads: int
    hidden_dim: int


def twin_shape(*, dim: int, hidden_dim: int, size: float) -> TwinShape:
    """The shape of the twin of an encoder of width ``dim``.

    The width is ``size * dim``, rounded to an even number; the heads are as many as are 64 wide or a little wider, at
    least one, so that they divide it evenly; the feed-forward layers keep their proportion.

    Raises:
        ConfigError: ``size`` is not above 0 and at most 1.
    """
    if not 0 < size <= 1:
        raise ConfigError(
            f"objective.losses.rtd.generator_size={size} is not a share of the encoder's width: use a number above 0 "
            f"and at most 1 (published: 0.25 for small and large, 0.333 for base)"
        )
    width = max(2, 2 * round(dim * size / 2))
    heads = next(n for n in range(max(1, width // _HEAD_DIM), 0, -1) if width % (2 * n) == 0)
    return TwinShape(width, heads, max(1, hidden_dim * width // dim))


class Twin(Encoder):
    """An encoder over the embeddings of another: its own projection of them, and its own layers.

    The embeddings are not this module's own: they are trained, saved and moved with the encoder they belong to.

    Args:
        encoder: whose twin it is.
        embeddings: that encoder's, a module (batch) -> (T, E).
        stack: the twin's layers, a module over (T, W).
        dim: W.
        bias: add a bias to the projection.
    """

    compiles = True
    family_head = FamilyHead(token="first")

    def __init__(self, *, encoder: Encoder, embeddings: TokenEmbeddings, stack: Stack, dim: int, bias: bool) -> None:
        super().__init__(
            dim=dim,
            num_layers=encoder.num_layers,
            max_length=encoder.max_length,
            vocab_size=encoder.vocab_size,
            num_segments=encoder.num_segments,
        )
        width = embeddings.token.embedding_dim
        self.attention = encoder.attention
        self.project: nn.Module = nn.Linear(width, dim, bias=bias) if width != dim else nn.Identity()
        self.project.apply(truncated_normal_)
        self.stack = stack
        self._embeddings = (embeddings,)  # a tuple, so that these weights are not this module's a second time

    @property
    def token_embedding(self) -> nn.Embedding:
        """The input embedding that both share."""
        return self._embeddings[0].token

    def forward(self, batch: PackedBatch, carry: Any = None, reads: Reads | None = None) -> EncoderOutput:
        """Encode; see ``models.base.Encoder``."""
        self.check_length(batch)
        return EncoderOutput(layers=self.stack(self.project(self._embeddings[0](batch)), batch, reads))
