"""Static word vectors with negative sampling (word2vec): the words around a word, or the word from those around it.

Shape legend: T tokens of a packed batch, N words that take part, K noise words of each, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss

#: What the corruption must give of each token (see ``ContextWindows``).
NEEDS = ("context_left", "context_right")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The words of a batch that have any context, end to end: context words of a word are its neighbours here.

    Attributes:
        positions_N: indices into T, int64.
        words_N: their ids, int64.
        left_N: words of context on the left, int64.
        right_N: words of context on the right, int64.
        noise_NK: ids of noise words, int64.
    """

    positions_N: Tensor
    words_N: Tensor
    left_N: Tensor
    right_N: Tensor
    noise_NK: Tensor

    @classmethod
    def of(cls, batch: PretrainingBatch) -> Contexts:
        """Those of a batch."""
        left_T, right_T = (batch.per_token[name] for name in NEEDS)
        positions_N = (left_T + right_T).nonzero()[:, 0]
        noise = [numbers for name, numbers in batch.per_token.items() if name.startswith("negative_")]
        return cls(
            positions_N=positions_N,
            words_N=batch.original.tokens_T[positions_N],
            left_N=left_T[positions_N],
            right_N=right_T[positions_N],
            noise_NK=torch.stack(noise, dim=1)[positions_N],
        )

    def pairs(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Pairs of words and context words, one distance and direction after the other.

        Yields:
            Where the words are in N, where their context words are, and which of the pairs count, as float32.
        """
        reach = int(torch.maximum(self.left_N.max(), self.right_N.max())) if len(self.left_N) else 0
        for distance in range(1, reach + 1):
            front, back = slice(None, -distance), slice(distance, None)
            yield front, back, (self.right_N[front] >= distance).float()
            yield back, front, (self.left_N[back] >= distance).float()


class NegativeSampling(Objective):
    """Tells true words from noise words by static vectors (Mikolov et al. 2013).

    Contexts and noise come from the corruption ``ContextWindows``; the output vectors are a matrix of its own, which
    starts at 0. A subclass gives its ``name``, what it counts and its loss.
    Losses: its name, binary cross entropies in nats; "<name>_accuracy", how often the true word scores above its noise.

    Args:
        weight: of the loss in the total.
    """

    directions = ("none",)
    needs = NEEDS
    needs_from = "windows"
    vocabulary_sized = ("output.weight",)

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """The sum of the losses, and how many true words score above the noise, from the words' own vectors."""
        raise NotImplementedError

    def bind(self, encoder: Encoder) -> None:
        """See ``Objective``."""
        super().bind(encoder)
        self.output = nn.Embedding(encoder.vocab_size, encoder.dim)
        nn.init.zeros_(self.output.weight)

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """See ``Objective``."""
        contexts = Contexts.of(batch)
        vectors_ND = encode(batch.original, None).last.index_select(0, contexts.positions_N)
        with torch.autocast(vectors_ND.device.type, enabled=False):
            total, hits = self.sums(vectors_ND, contexts)
        return self.loss_and_accuracy(total, hits, self.count(batch))


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
    title = "contexts of words"

    def count(self, batch: PretrainingBatch) -> int:
        """See ``Objective``; pairs of a word and a context word."""
        return int((batch.per_token[NEEDS[0]] + batch.per_token[NEEDS[1]]).sum())

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
    title = "words from their contexts"

    def count(self, batch: PretrainingBatch) -> int:
        """See ``Objective``; words with any context."""
        return int(torch.count_nonzero(batch.per_token[NEEDS[0]] + batch.per_token[NEEDS[1]]))

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
