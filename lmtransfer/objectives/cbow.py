"""Continuous bag of words with negative sampling (word2vec).

Shape legend: T tokens of a packed batch, N words that take part, K noise words of each, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.contexts import Contexts, num_words
from lmtransfer.objectives.negative_sampling import NegativeSampling


class ContinuousBagOfWords(NegativeSampling):
    """Tells a word from noise words by the mean of the vectors around it (Mikolov et al. 2013, "Efficient ...", 3.1).

    Contexts and noise come from the corruption ``ContextWindows``; the output vectors are a matrix of its own, which
    starts at 0. Losses: "cbow", the binary cross entropies in nats of a word and its noise words, summed over words
    with any context; "cbow_accuracy", the words that score above their noise.

    As in word2vec.c, a noise word that is the word itself does not count.

    Args:
        weight: of the loss in the total.
    """

    name = "cbow"

    def count(self, batch: PretrainingBatch) -> int:
        """Words with any context."""
        return num_words(batch)

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """The sum over words, and how many score above the noise."""
        means_ND = _context_means(vectors_ND, contexts)
        scores_N = (means_ND * self.output(contexts.words_N)).sum(1)
        noise_NK = torch.einsum("nd,nkd->nk", means_ND, self.output(contexts.noise_NK))
        is_other_NK = contexts.noise_NK != contexts.words_N[:, None]
        total = softplus(-scores_N).sum() + (softplus(noise_NK) * is_other_NK).sum()
        rivals_NK = noise_NK.detach().masked_fill(~is_other_NK, -torch.inf)
        return total, (scores_N.detach()[:, None] > rivals_NK).all(1).float().sum()


def _context_means(vectors_ND: Tensor, contexts: Contexts) -> Tensor:
    """The mean vector of each word's context, (N, D)."""
    sums_ND = torch.zeros_like(vectors_ND)
    for words, around, counted in contexts.pairs():
        sums_ND[words] += vectors_ND[around] * counted[:, None]
    return sums_ND / (contexts.left_N + contexts.right_N)[:, None]
