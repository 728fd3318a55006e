"""The base class of objectives that predict tokens with an output matrix over the vocabulary."""

from __future__ import annotations

from types import MappingProxyType

from torch import nn

from lmtransfer.config.types import NonNegative
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.initialisation import truncated_normal_
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.sampled_softmax import checked_num_sampled


class TokenPrediction(Objective):
    """The output matrix is the token embedding, or a separate matrix of the same width with random initial values.

    In a run with phases, a tied output matrix begins as the token embedding at the start of the phase. What a separate
    output matrix learned in an earlier phase is dropped.

    Args:
        weight: weight of the loss in the total.
        tie_output: whether the output matrix is the token embedding.
        num_sampled: number of classes sampled for a sampled softmax in training, which is faster with a vocabulary of
            several times as many. It assumes that ids are sorted by frequency, as in most vocabularies. The classes are
            sampled for each micro-batch, like the masks of dropout. None, or as many as the vocabulary has: the full
            softmax, which evaluation always uses.

    Raises:
        ConfigError: ``num_sampled`` is less than 1.
    """

    as_published = MappingProxyType({"tie_output": True})

    def __init__(self, *, weight: NonNegative = 1.0, tie_output: bool = True, num_sampled: int | None = None) -> None:
        super().__init__(weight=weight)
        self.ties_embedding = tie_output
        self.num_sampled = checked_num_sampled(self.name, num_sampled)

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        super().bind(encoder)
        if not self.ties_embedding:
            self.output = nn.Embedding(encoder.vocab_size, self.tied_embedding.embedding_dim)
            self.output.apply(truncated_normal_)
            self.vocabulary_sized = (*self.vocabulary_sized, "output.weight")

    @property
    def output_embedding(self) -> nn.Embedding:
        """The output matrix."""
        return self.tied_embedding if self.ties_embedding else self.output

    def output_weights(self) -> int:
        """See ``Objective``."""
        return self.entries_read(self.output_embedding.weight)
