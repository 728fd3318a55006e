"""What the objectives of word2vec share.

Shape legend: T tokens of a packed batch, N words that take part, K noise words of each, V vocabulary, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.contexts import NEEDS, Contexts
from lmtransfer.training.learner import Loss


class NegativeSampling(nn.Module):
    """Tells true words from noise words by static vectors (Mikolov et al. 2013).

    Contexts and noise come from the corruption ``ContextWindows``; the output vectors are a matrix of its own, which
    starts at 0. A subclass gives its ``name``, what it counts and its loss.
    Losses: its name, binary cross entropies in nats; "<name>_accuracy", how often the true word scores above its noise.

    Args:
        weight: of the loss in the total.
    """

    name: str
    directions: tuple[Direction, ...] = ("none",)
    reads: Read = "all"
    label: str | None = None
    uses_pooler = False
    needs = NEEDS
    needs_from = "windows"

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def count(self, batch: PretrainingBatch) -> int:
        """What the loss is a sum over."""
        raise NotImplementedError

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """The sum of the losses, and how many true words score above the noise, from the words' own vectors."""
        raise NotImplementedError

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        self.output = nn.Embedding(encoder.vocab_size, encoder.dim)
        nn.init.zeros_(self.output.weight)

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``."""
        count = self.count(batch)
        return {self.name: count, f"{self.name}_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        count, contexts = self.count(batch), Contexts.of(batch)
        vectors_ND = encode(batch.original, None).last.index_select(0, contexts.positions_N)
        with torch.autocast(vectors_ND.device.type, enabled=False):
            total, hits = self.sums(vectors_ND, contexts)
        return {self.name: Loss(total, count, self.weight), f"{self.name}_accuracy": Loss(hits, count, 0.0)}
