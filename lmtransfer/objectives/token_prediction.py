"""The base class of objectives that predict tokens with an output matrix over the vocabulary."""

from __future__ import annotations

from types import MappingProxyType

from torch import nn

from lmtransfer.layers.initialisation import truncated_normal_
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective


class TokenPrediction(Objective):
    """The output matrix is the token embedding, or a separate matrix of the same width with random initial values.

    In a run with phases, a tied output matrix begins as the token embedding at the start of the phase. What a separate
    output matrix learned in an earlier phase is dropped.

    Args:
        weight: weight of the loss in the total.
        tie_output: whether the output matrix is the token embedding.
    """

    as_published = MappingProxyType({"tie_output": True})

    def __init__(self, *, weight: float = 1.0, tie_output: bool = True) -> None:
        super().__init__(weight=weight)
        self.ties_embedding = tie_output

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
        return self.output_embedding.weight.numel()
