"""Static word vectors with negative sampling (word2vec): a word predicts its context, or the context predicts the word.

Shape legend: T tokens of a packed batch, N words with context, K noise words of each, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from typing_extensions import override

from lmtransfer.data.batch import upload
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss

#: The numbers that the corruption must provide for each token (see ``ContextWindows``).
NEEDS = ("context_left", "context_right")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The words of a batch that have context, end to end, so that the context words of a word are adjacent to it.

    Attributes:
        positions_N: indices of the words into T, int64.
        words_N: ids of the words, int64.
        left_N: number of context words on the left, int64.
        right_N: number of context words on the right, int64.
        noise_NK: ids of the noise words, int64.
        reach: the maximum number of context words on one side.
    """

    positions_N: Tensor
    words_N: Tensor
    left_N: Tensor
    right_N: Tensor
    noise_NK: Tensor
    reach: int

    @classmethod
    def of(cls, batch: PretrainingBatch) -> Contexts:
        """Extract the contexts of a batch."""
        left_T, right_T = _sides(batch)
        positions = np.flatnonzero(left_T + right_T)
        positions_N = upload(positions, batch.original.tokens_T.device)
        noise = [numbers for name, numbers in batch.per_token.items() if name.startswith("negative_")]
        return cls(
            positions_N=positions_N,
            words_N=batch.original.tokens_T[positions_N],
            left_N=batch.per_token[NEEDS[0]][positions_N],
            right_N=batch.per_token[NEEDS[1]][positions_N],
            noise_NK=torch.stack(noise, dim=1)[positions_N],
            reach=int(np.maximum(left_T, right_T).max(initial=0)),
        )

    def pairs(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Iterate over pairs of words and context words, one distance and direction after the other.

        Yields:
            The slice of N with the words; the slice of N with their context words; and which pairs count, float32.
        """
        for distance in range(1, self.reach + 1):
            front, back = slice(None, -distance), slice(distance, None)
            yield front, back, (self.right_N[front] >= distance).float()
            yield back, front, (self.left_N[back] >= distance).float()


def _sides(batch: PretrainingBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of context words of each token on the left and on the right, (T,) each, read on the host."""
    left_T, right_T = (batch.host_batch.per_token[name].numpy() for name in NEEDS)
    return left_T, right_T


class NegativeSampling(Objective):
    """Separates true words from noise words with static vectors (Mikolov et al. 2013).

    Contexts and noise come from the corruption ``ContextWindows``. The output vectors are a separate matrix, which
    starts at 0. A subclass defines ``name``, ``count`` and ``sums``.
    Losses: "<name>", binary cross entropies in nats; "<name>_accuracy", how often the true word scores higher than its
    noise words.

    Args:
        weight: weight of the loss in the total.
    """

    directions = ("none",)
    needs = NEEDS
    needs_from = "windows"
    vocabulary_tensors = ("output.weight",)

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Compute the sum of the losses, and how many true words score above the noise, from the words' vectors."""
        raise NotImplementedError

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        self.output = nn.Embedding(encoder.vocab_size, encoder.dim)
        nn.init.zeros_(self.output.weight)

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        contexts = Contexts.of(batch)
        vectors_ND = encode(batch.original, None).last.index_select(0, contexts.positions_N)
        with torch.autocast(vectors_ND.device.type, enabled=False):
            total, hits = self.sums(vectors_ND, contexts)
        return self.loss_and_accuracy(total, hits, self.count(batch))


class SkipGram(NegativeSampling):
    """Separates the context words of a word from noise words (Mikolov et al. 2013, "Distributed ...", equation 4).

    Contexts and noise come from the corruption ``ContextWindows``. The output vectors are a separate matrix, which
    starts at 0. Losses: "skipgram", the binary cross entropies in nats of a context word and its noise words, summed
    over pairs of a word and a context word; "skipgram_accuracy", the pairs whose context word scores above the noise.

    As in word2vec.c, a noise word that equals the context word does not count. Where we differ: all context words of a
    word share its noise words, which does not change the expected loss.

    Args:
        weight: weight of the loss in the total.
    """

    name = "skipgram"
    title = "contexts of words"

    @override
    def count(self, batch: PretrainingBatch) -> int:
        """Return the number of pairs of a word and a context word."""
        return int(np.add(*_sides(batch)).sum())

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Sum over pairs, and count the context words that score above the noise."""
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
    """Separates a word from noise words by its mean context vector (Mikolov et al. 2013, "Efficient ...", 3.1).

    Contexts and noise come from the corruption ``ContextWindows``. The output vectors are a separate matrix, which
    starts at 0. Losses: "cbow", the binary cross entropies in nats of a word and its noise words, summed over words
    with context; "cbow_accuracy", the words that score above their noise words.

    As in word2vec.c, a noise word that equals the word does not count.

    Args:
        weight: weight of the loss in the total.
    """

    name = "cbow"
    title = "words from their contexts"

    @override
    def count(self, batch: PretrainingBatch) -> int:
        """Return the number of words with context."""
        return int(np.count_nonzero(np.add(*_sides(batch))))

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Sum over words, and count the words that score above the noise."""
        means_ND = _context_means(vectors_ND, contexts)
        scores_N = (means_ND * self.output(contexts.words_N)).sum(1)
        noise_NK = torch.einsum("nd,nkd->nk", means_ND, self.output(contexts.noise_NK))
        is_other_NK = contexts.noise_NK != contexts.words_N[:, None]
        total = softplus(-scores_N).sum() + (softplus(noise_NK) * is_other_NK).sum()
        negatives_NK = noise_NK.detach().masked_fill(~is_other_NK, -torch.inf)
        return total, (scores_N.detach()[:, None] > negatives_NK).all(1).float().sum()


def _context_means(vectors_ND: Tensor, contexts: Contexts) -> Tensor:
    """Return the mean context vector of each word, (N, D)."""
    sums_ND = torch.zeros_like(vectors_ND)
    for words, around, counted in contexts.pairs():
        sums_ND[words] += vectors_ND[around] * counted[:, None]
    return sums_ND / (contexts.left_N + contexts.right_N)[:, None]
