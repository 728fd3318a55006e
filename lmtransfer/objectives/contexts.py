"""Words, their contexts and their noise words of a batch, for the objectives of word2vec.

Shape legend: T tokens of a packed batch, N words that take part, K noise words of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lmtransfer.objectives.batch import PretrainingBatch

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


def num_words(batch: PretrainingBatch) -> int:
    """How many words have any context."""
    return int(torch.count_nonzero(batch.per_token[NEEDS[0]] + batch.per_token[NEEDS[1]]))


def num_pairs(batch: PretrainingBatch) -> int:
    """How many pairs of a word and a context word there are."""
    return int((batch.per_token[NEEDS[0]] + batch.per_token[NEEDS[1]]).sum())
