"""Skip-gram with negative sampling (word2vec).

Shape legend: T tokens of a packed batch, N words that take part, K noise words of each, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Encode, Read, check_direction
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.contexts import NEEDS, Contexts, num_pairs
from lmtransfer.training.learner import Loss


class SkipGram(nn.Module):
    """Tells the words around a word from noise words (Mikolov et al. 2013, "Distributed ...", equation 4).

    Contexts and noise come from the corruption ``ContextWindows``; the output vectors are a matrix of its own, which
    starts at 0. Losses: "skipgram", the binary cross entropies in nats of a context word and its noise words, summed
    over pairs of a word and a context word; "skipgram_accuracy", the pairs whose context word scores above the noise.

    As in word2vec.c, a noise word that is the context word itself does not count. Where we differ: all context words
    of a word share its noise words, which changes no expectation.

    Args:
        weight: of the loss in the total.
    """

    name = "skipgram"
    directions: tuple[Direction, ...] = ("none",)
    reads: Read = "all"
    label: str | None = None
    uses_pooler = False
    needs = NEEDS
    needs_from = "windows"

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        check_direction(self, encoder.attention)
        self.output = nn.Embedding(encoder.vocab_size, encoder.dim)
        nn.init.zeros_(self.output.weight)

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """See ``Objective``; pairs."""
        pairs = num_pairs(batch)
        return {"skipgram": pairs, "skipgram_accuracy": pairs}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        count, contexts = num_pairs(batch), Contexts.of(batch)
        vectors_ND = encode(batch.original, None).last.index_select(0, contexts.positions_N)
        with torch.autocast(vectors_ND.device.type, enabled=False):
            total, hits = self._losses(vectors_ND, contexts)
        return {"skipgram": Loss(total, count, self.weight), "skipgram_accuracy": Loss(hits, count, 0.0)}

    def _losses(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """The sum over pairs, and how many context words score above the noise."""
        output_ND = self.output(contexts.words_N)
        noise_NK = torch.einsum("nd,nkd->nk", vectors_ND, self.output(contexts.noise_NK))
        best_N = noise_NK.detach().amax(1)
        times_NK = (contexts.left_N + contexts.right_N).float()[:, None].expand_as(noise_NK).clone()
        total, hits = vectors_ND.new_zeros(()), vectors_ND.new_zeros(())
        for words, around, counted in contexts.pairs():
            scores = (vectors_ND[words] * output_ND[around]).sum(1)
            total = total + (softplus(-scores) * counted).sum()
            hits = hits + ((scores.detach() > best_N[words]) * counted).sum()
            same = contexts.noise_NK[words] == contexts.words_N[around, None]
            times_NK[words] -= same * counted[:, None]
        return total + (softplus(noise_NK) * times_NK).sum(), hits
