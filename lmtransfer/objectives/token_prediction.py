"""The base class and the loss of objectives that predict tokens with an output matrix over the vocabulary.

Shape legend: M prediction positions, V vocabulary, E width of the output embedding.
"""

from __future__ import annotations

from types import MappingProxyType

from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.models.layers.cross_entropy import (
    cross_entropies,
    cross_entropy_sum,
    log_uniform_samples,
    sampled_cross_entropies,
)
from lmtransfer.objectives.base import Objective, Softmax


class TokenPrediction(Objective):
    """Predicts tokens; the output matrix is the token embedding, or a randomly initialized matrix of the same width.

    If a phase with a tied output matrix follows a phase with a separate one, what the separate matrix learned is
    discarded.

    Args:
        tie_output: whether the token embedding is the output matrix.
        num_sampled: number of classes of a sampled softmax in training, which is faster if the vocabulary is several
            times as large. Ids must be sorted by frequency, as in most vocabularies. The classes are sampled for each
            micro-batch. None, or the size of the vocabulary, gives the full softmax, which evaluation always uses.
    """

    published_arguments = MappingProxyType({"tie_output": True})

    def __init__(self, *, weight: NonNegative = 1.0, tie_output: bool = True, num_sampled: Count | None = None) -> None:
        super().__init__(weight=weight)
        self.ties_embedding = tie_output
        self.num_sampled = num_sampled

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        if not self.ties_embedding:
            self.output = nn.Embedding(encoder.vocab_size, self.tied_embedding.embedding_dim)
            self.output.apply(truncated_normal_)
            self.vocabulary_tensors = (*self.vocabulary_tensors, "output.weight")

    @property
    def output_embedding(self) -> nn.Embedding:
        """The output matrix."""
        return self.tied_embedding if self.ties_embedding else self.output

    @property
    def output_bias(self) -> Tensor | None:
        """The bias after the output matrix; None for no bias."""
        return None

    def transform(self, hidden_MD: Tensor) -> Tensor:
        """Compute the input of the output matrix: (M, D) -> (M, E)."""
        raise NotImplementedError

    def score(self, hidden_MD: Tensor, targets_M: Tensor, weights_M: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weighted sum of cross entropies and the total weight of correct predictions."""
        hidden_ME, output_VE = self.transform(hidden_MD), self.output_embedding.weight
        return vocabulary_loss(
            hidden_ME, output_VE, self.output_bias, targets_M, weights_M, num_sampled=self.active_num_sampled
        )

    def softmax(self, hidden_MD: Tensor) -> Softmax:
        """Return the distributions over the vocabulary."""
        return Softmax(self.transform(hidden_MD), self.output_embedding.weight, self.output_bias)

    @override
    def output_weights(self) -> int:
        return self.entries_read(self.output_embedding.weight)


def vocabulary_loss(
    hidden_ME: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    weights_M: Tensor,
    *,
    num_sampled: int | None,
    corrects_target: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute the weighted sum of cross entropies (nats) and the total weight of correct predictions.

    Args:
        num_sampled: number of classes to sample, with the device's global generator, as for dropout; there are then no
            predictions, and the second result is None. None gives the full softmax.
        corrects_target: see ``sampled_cross_entropies``.
    """
    if num_sampled is not None:
        losses_M, _ = vocabulary_losses(
            hidden_ME, weight_VE, bias_V, targets_M, num_sampled=num_sampled, corrects_target=corrects_target
        )
        return (losses_M * weights_M).sum(), None
    total, hits_M = cross_entropy_sum(hidden_ME, weight_VE, bias_V, targets_M, weights_M)
    return total, (hits_M * weights_M).sum()


def vocabulary_losses(
    hidden_ME: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    *,
    num_sampled: int | None,
    corrects_target: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the cross entropy (nats) and the most probable id at each position, (M,); see ``vocabulary_loss``."""
    if num_sampled is None:
        return cross_entropies(hidden_ME, weight_VE, bias_V, targets_M)
    samples_S = log_uniform_samples(num_sampled, len(weight_VE), weight_VE.device)
    losses_M = sampled_cross_entropies(
        hidden_ME, weight_VE, bias_V, targets_M, samples_S=samples_S, corrects_target=corrects_target
    )
    return losses_M, None
