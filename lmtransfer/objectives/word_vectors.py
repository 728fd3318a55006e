"""Static word vectors with negative sampling (word2vec): skip-gram and continuous bag of words (CBOW).

Shape legend: T tokens of a packed batch, N words with context, K noise words per word, V vocabulary, D width.
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

#: The integers that the corruption must provide for each token (see ``ContextWindows``).
NEEDS = ("context_left", "context_right")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The words of a batch that have context words. Other tokens are left out, so a word's neighbors are its contexts.

    Attributes:
        positions_N: positions of the words in the batch.
        left_N, right_N: number of context words on each side.
        reach: maximum number of context words on one side.
    """

    positions_N: Tensor
    words_N: Tensor
    left_N: Tensor
    right_N: Tensor
    noise_NK: Tensor
    reach: int

    @classmethod
    def of(cls, batch: PretrainingBatch) -> Contexts:
        """Extract the words of a batch and their contexts."""
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
        """Iterate over the pairs of a word and a context word, by distance and direction.

        Yields:
            The slice of N with the words; the slice of N with their context words; and 1 for each pair that counts, 0
            for the others, float32.
        """
        for distance in range(1, self.reach + 1):
            front, back = slice(None, -distance), slice(distance, None)
            yield front, back, (self.right_N[front] >= distance).float()
            yield back, front, (self.left_N[back] >= distance).float()


def _sides(batch: PretrainingBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of context words of each token on the left and on the right, (T,) each, from the host."""
    left_T, right_T = (batch.host_batch.per_token[name].numpy() for name in NEEDS)
    return left_T, right_T


class NegativeSampling(Objective):
    """Distinguishes true words from noise words by static vectors (Mikolov et al. 2013).

    Contexts and noise words come from the corruption ``ContextWindows``. The output vectors are a separate matrix,
    which starts at 0. A subclass defines ``name``, ``count`` and ``sums``.

    Losses: "<name>", binary cross entropies in nats; and "<name>_accuracy", the share of true words that score higher
    than all their noise words.
    """

    directions = ("none",)
    needs = NEEDS
    needs_from = "windows"
    vocabulary_tensors = ("output.weight",)

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Compute the sum of the losses, and the number of true words that score higher than all their noise words."""
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
    """Distinguishes the context words of a word from noise words (Mikolov et al. 2013, "Distributed ...", equation 4).

    Contexts and noise words come from the corruption ``ContextWindows``. The output vectors are a separate matrix,
    which starts at 0.

    Losses: "skipgram", the binary cross entropies in nats of a context word and its noise words, summed over pairs of a
    word and a context word; and "skipgram_accuracy", the share of pairs whose context word scores higher than all noise
    words.

    As in word2vec.c, a noise word that equals the context word does not count. Where we differ: all context words of a
    word share the same noise words, which does not change the expected loss.
    """

    name = "skipgram"
    title = "contexts of words"

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return int(np.add(*_sides(batch)).sum())

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Sum over pairs, and count the context words that score higher than all noise words."""
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
    """Distinguishes a word from noise words by its mean context vector (Mikolov et al. 2013, "Efficient ...", 3.1).

    Contexts and noise words come from the corruption ``ContextWindows``. The output vectors are a separate matrix,
    which starts at 0.

    Losses: "cbow", the binary cross entropies in nats of a word and its noise words, summed over words with context;
    and "cbow_accuracy", the share of words that score higher than all their noise words.

    As in word2vec.c, a noise word that equals the word does not count.
    """

    name = "cbow"
    title = "words from their contexts"

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return int(np.count_nonzero(np.add(*_sides(batch))))

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Sum over words, and count the words that score higher than all their noise words."""
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
