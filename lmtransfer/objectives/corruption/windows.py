"""Context windows and noise words (word2vec)."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count, Positive, SmallCount
from lmtransfer.data.token_frequencies import keep_probabilities, token_shares
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.objectives.corruption.masking import CorruptedRow, Corruption
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer

#: Number of ranges in the table of ``Quantiles``: a power of two, so that products with it are exact.
_RANGES = 2**16


class Quantiles:
    """Samples ids from uniform numbers, faster than ``cumulative.searchsorted(uniform, side="right")``.

    A table contains the id at which the search begins for each of 65,536 ranges of the uniform number, so that only a
    few vectorized steps remain.

    Args:
        cumulative: cumulative probability of the ids, ascending, shape (V,).
    """

    def __init__(self, cumulative: np.ndarray) -> None:
        self.bounds = np.append(cumulative, np.inf)
        self.begins = cumulative.searchsorted(np.arange(_RANGES) / _RANGES, side="right")

    def __call__(self, uniform: np.ndarray) -> np.ndarray:
        """Return the ids for uniform numbers in [0, 1), int64, in the same shape."""
        ids = self.begins[(uniform * _RANGES).astype(np.int64)]
        while (above := self.bounds[ids] <= uniform).any():
            ids += above
        return ids


class ContextWindows(Corruption):
    """Selects the context words of each word and samples noise words, without masking (word2vec).

    As in word2vec.c, special tokens and subsampled words are removed from the text first, so that windows reach
    further. The size of each window is sampled from 1 to ``window``. Noise words follow the unigram distribution raised
    to the power of ``noise_power`` (Mikolov et al. 2013, "Distributed representations of words and phrases and their
    compositionality", sections 2.2 and 2.3). A window ends at [CLS] and [SEP], so it never spans two documents.

    ``per_token["context_left"]`` and ``per_token["context_right"]`` are the numbers of context words on each side of a
    word, counted among the remaining words; both are 0 for removed tokens. ``per_token["negative_0"]`` and so on are
    the noise words for the word.

    Until ``observe`` is called, all words count as equally frequent.

    Args:
        window: maximum number of context words on each side.
        noise_power: with 0, noise words are sampled uniformly; with 1, by their frequency.
        subsample: words with a frequency above this threshold t are removed at random, with probability ``1 - sqrt(t /
            frequency)`` (1e-5 in the paper, for a billion words); null disables subsampling.
    """

    provides = ("context_left", "context_right")
    shows_targets = True

    def __init__(
        self,
        *,
        window: Count = 5,
        num_negatives: SmallCount = 5,
        noise_power: float = 0.75,
        subsample: Positive | None = None,
        static_masking: bool = False,
        tokenizer: Tokenizer,
    ) -> None:
        self.window, self.num_negatives, self.noise_power = window, num_negatives, noise_power
        self._names = (*self.provides, *(f"negative_{k}" for k in range(num_negatives)))
        self.subsample, self.static_masking = subsample, static_masking
        self.ordinary = ~tokenizer.is_special
        self.borders = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.borders[[tokenizer.cls_id, tokenizer.sep_id]] = True
        self.set_frequencies(np.ones(tokenizer.vocab_size) / tokenizer.vocab_size)
        self.keep = self.ordinary.astype(np.float64)

    @override
    def observe(self, store: TokenStore | MixedStore) -> None:
        self.set_frequencies(token_shares(store))

    def set_frequencies(self, shares: np.ndarray) -> None:
        """Set the word frequencies.

        Args:
            shares: share of each id in the tokens of the corpus; 0 for ids beyond the length of ``shares``.
        """
        frequency = np.zeros(len(self.ordinary))
        size = min(len(frequency), len(shares))
        frequency[:size] = np.where(self.ordinary[:size], shares[:size], 0.0)
        noise = np.where(frequency > 0, frequency**self.noise_power, 0.0)
        self.noise = Quantiles(np.cumsum(noise) / noise.sum())
        self.keep = self.ordinary.astype(np.float64)
        if self.subsample is not None:
            self.keep *= keep_probabilities(frequency, threshold=self.subsample)

    @override
    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        tokens = row.tokens
        (words,) = (rng.random(len(tokens)) < self.keep[tokens]).nonzero()
        segment_of_word = np.cumsum(self.borders[tokens])[words]
        is_edge = np.ones(len(words) + 1, dtype=bool)
        np.not_equal(segment_of_word[1:], segment_of_word[:-1], out=is_edge[1:-1])
        (edges,) = is_edge.nonzero()
        sizes = edges[1:] - edges[:-1]
        places = np.arange(len(words))
        reach = rng.integers(1, self.window + 1, size=len(words))
        sampled = rng.random((self.num_negatives, len(words)))
        numbers = np.zeros((len(self._names), len(tokens)), dtype=np.int64)
        numbers[0, words] = np.minimum(places - edges[:-1].repeat(sizes), reach)
        numbers[1, words] = np.minimum(edges[1:].repeat(sizes) - 1 - places, reach)
        numbers[2:, words] = self.noise(sampled)
        per_token = dict(zip(self._names, numbers, strict=True))
        nothing = np.zeros(0, dtype=np.int64)
        return CorruptedRow(tokens, nothing, tokens[nothing], per_token=per_token)
