"""Context windows and noise words (word2vec)."""

from __future__ import annotations

import numpy as np

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import kept_rates, token_shares
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.base import Corrupted, Corruption
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer


class ContextWindows(Corruption):
    """Says which words around each word are its context, and draws noise words; hides nothing.

    As word2vec.c: special tokens and words left out by subsampling are taken out of the text first, so that windows
    reach further; the window of each word is drawn from 1 to ``window``; noise words follow the unigram distribution
    to the power of ``noise_power`` (Mikolov et al. 2013, "Distributed representations of words and phrases and their
    compositionality", sections 2.2 and 2.3). A window ends at [CLS] and [SEP], so it never spans two documents.

    ``per_token["context_left"]`` and ``per_token["context_right"]`` are how many words of context a word has on each
    side, among those that have any; both are 0 for a token that takes no part. ``per_token["negative_0"]`` and so on
    are its noise words.

    Until ``observe`` is called, all words count as equally frequent.

    Args:
        window: most words of context on each side.
        num_negatives: noise words of each word.
        noise_power: 0 draws all words alike, 1 by their frequency.
        subsample: frequency t above which words are left out at random, with probability ``1 - sqrt(t / frequency)``
            (1e-5 in the paper, for a billion words); null: none.
        static_masking: every epoch repeats the rows and draws of the first.
        tokenizer: names the special tokens.

    Raises:
        ConfigError: a number outside what is allowed.
    """

    gives = ("context_left", "context_right")

    def __init__(
        self,
        *,
        window: int = 5,
        num_negatives: int = 5,
        noise_power: float = 0.75,
        subsample: float | None = None,
        static_masking: bool = False,
        tokenizer: Tokenizer,
    ) -> None:
        for name, value in (("window", window), ("num_negatives", num_negatives)):
            if value < 1:
                raise ConfigError(f"objective.corruption.{name}={value} is not allowed: use 1 or more")
        if subsample is not None and not subsample > 0:
            raise ConfigError(f"objective.corruption.subsample={subsample}: use a number above 0, or null for none")
        self.window, self.num_negatives, self.noise_power = window, num_negatives, noise_power
        self.subsample, self.static_masking = subsample, static_masking
        self.ordinary = ~tokenizer.is_special
        self.borders = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.borders[[tokenizer.cls_id, tokenizer.sep_id]] = True
        self.set_frequencies(np.ones(tokenizer.vocab_size) / tokenizer.vocab_size)
        self.keep = self.ordinary.astype(np.float64)

    def observe(self, store: TokenStore | MixedStore) -> None:
        """See ``Corruption``: how often words occur."""
        self.set_frequencies(token_shares(store))

    def set_frequencies(self, shares: np.ndarray) -> None:
        """Take words to occur so often.

        Args:
            shares: of each id among all tokens of the corpus; ids beyond its length do not occur.
        """
        frequency = np.zeros(len(self.ordinary))
        known = min(len(frequency), len(shares))
        frequency[:known] = np.where(self.ordinary[:known], shares[:known], 0.0)
        noise = np.where(frequency > 0, frequency**self.noise_power, 0.0)
        self.noise = np.cumsum(noise) / noise.sum()
        self.keep = self.ordinary.astype(np.float64)
        if self.subsample is not None:
            self.keep *= kept_rates(frequency, threshold=self.subsample)

    def corrupt(self, row: Row, rng: np.random.Generator) -> Corrupted:
        """See ``Corruption``; the tokens stay as they are."""
        tokens = row.tokens
        words = np.flatnonzero(rng.random(len(tokens)) < self.keep[tokens])
        stretch = np.cumsum(self.borders[tokens])[words]
        first = np.flatnonzero(np.diff(stretch, prepend=-1))
        sizes = np.diff(np.append(first, len(words)))
        before = np.arange(len(words)) - np.repeat(first, sizes)
        after = np.repeat(sizes, sizes) - 1 - before
        reach = rng.integers(1, self.window + 1, size=len(words))
        drawn = rng.random((self.num_negatives, len(words)))
        numbers = {
            "context_left": np.minimum(before, reach),
            "context_right": np.minimum(after, reach),
            **{f"negative_{k}": self.noise.searchsorted(u, side="right") for k, u in enumerate(drawn)},
        }
        per_token = {}
        for name, values in numbers.items():
            per_token[name] = np.zeros(len(tokens), dtype=np.int64)
            per_token[name][words] = values
        nothing = np.zeros(0, dtype=np.int64)
        return Corrupted(tokens, nothing, tokens[nothing], per_token=per_token)

    def expected_targets(self, num_tokens: int) -> int:
        """None."""
        return 0
