"""Skip-gram with negative sampling (word2vec).

Shape legend: T tokens of a packed batch, N words that take part, K noise words of each, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.contexts import Contexts, num_pairs
from lmtransfer.objectives.negative_sampling import NegativeSampling


class SkipGram(NegativeSampling):
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

    def count(self, batch: PretrainingBatch) -> int:
        """Pairs of a word and a context word."""
        return num_pairs(batch)

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
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
