"""The tokens that a permutation language model predicts, and the order in which it predicts them (XLNet).

The attention mask that follows from this order is in ``models.layers.relative_attention``, and the two streams that use
it are in ``models.xlnet``.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count, NgramWords
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import Choice, CorruptedRow, Corruption
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer


class PermutationTargets(Corruption):
    """Chooses short spans to predict, and the order in which their tokens are predicted; the row stays unchanged.

    Spans are chosen as in section 3.1 of Yang et al. 2019: sample a length of 1 to ``max_ngram``, and place a span of
    this length within a context of ``alpha / beta`` times as many tokens, until the row is used up. ``beta / alpha`` of
    the tokens of the row are then predicted. The probability of a length n is proportional to 1 / n, as in
    data_utils.py of the XLNet code; the paper does not specify it. Special tokens belong to no context.

    The order is a random permutation of the chosen tokens. A token is predicted from all tokens that are not chosen,
    and from the chosen tokens before it in the order. Tokens that are not chosen come first, and their own order does
    not matter.

    Where we differ from the published code: spans consist of tokens instead of whole words, contexts lie at random
    positions in the row, and a span is part of its context, so that no additional tokens have to be chosen to reach the
    intended number of predictions.

    ``per_token["order"]`` is 0 for tokens that are not predicted, and 1, 2, ... for the others.

    Args:
        alpha: number of tokens in a context, 6 as published.
        beta: number of predicted tokens per ``alpha`` tokens of context, 1 as published.
        max_predictions: maximum number of tokens to predict in a row; null for no limit (85 at 512 tokens in the
            paper).
    """

    provides = ("order",)
    shows_targets = True

    def __init__(
        self,
        *,
        alpha: float = 6.0,
        beta: float = 1.0,
        max_ngram: NgramWords = 5,
        max_predictions: Count | None = None,
        static_masking: bool = False,
        tokenizer: Tokenizer,
    ) -> None:
        if not 0 < beta < alpha:
            raise ConfigError(
                f"objective.corruption.alpha={alpha} and objective.corruption.beta={beta} are not allowed: beta of "
                f"every alpha tokens are predicted, so use 0 < beta < alpha (XLNet uses alpha=6, beta=1)"
            )
        self.context, self.max_ngram, self.max_predictions = alpha / beta, max_ngram, max_predictions
        self.static_masking = static_masking
        self.maskable = ~tokenizer.is_special
        shares = 1 / np.arange(1, max_ngram + 1)
        self.cumulative = np.cumsum(shares / shares.sum())

    @override
    def corrupt(self, row: Row, rng: np.random.Generator) -> CorruptedRow:
        maskable = np.flatnonzero(self.maskable[row.tokens])
        positions = maskable[self.choose(len(maskable), rng).positions]
        if len(positions) == len(row.tokens):  # a single token: there is no context to predict it from
            positions = positions[:0]
        order = np.zeros(len(row.tokens), dtype=np.int64)
        order[positions] = rng.permutation(len(positions)) + 1
        return CorruptedRow(row.tokens, positions, row.tokens[positions], per_token={"order": order})

    def choose(self, size: int, rng: np.random.Generator) -> Choice:
        """Choose spans among ``size`` tokens: ``size * beta / alpha`` tokens in total, rounded down, but at least 1."""
        if size == 0:
            return Choice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        budget = max(int(size / self.context), 1)
        spans = self._spans(budget, rng)
        # Contexts follow one another; a random number of the remaining tokens precede them.
        ends = np.minimum((np.cumsum(spans) * self.context).astype(np.int64), size)
        contexts = np.diff(ends, prepend=0)
        first = rng.integers(size - ends[-1] + 1)
        starts = first + ends - contexts + rng.integers(contexts - spans + 1)
        if self.max_predictions is not None and budget > self.max_predictions:
            spans = self._shortened(spans, self.max_predictions, rng)
            starts, spans = starts[spans > 0], spans[spans > 0]
        within = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans)
        return Choice(np.repeat(starts, spans) + within, np.repeat(np.arange(len(spans)), spans))

    def _spans(self, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Sample lengths whose sum is ``budget``, in random order."""
        lengths: list[int] = []
        while budget:
            longest = min(self.max_ngram, budget)
            uniform = rng.random() * self.cumulative[longest - 1]
            lengths.append(int(self.cumulative.searchsorted(uniform, side="right")) + 1)
            budget -= lengths[-1]
        return rng.permutation(np.array(lengths))

    def _shortened(self, spans: np.ndarray, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Keep random spans of ``budget`` tokens in total, and shorten the last; the other lengths become 0."""
        order = rng.permutation(len(spans))
        before = np.cumsum(spans[order]) - spans[order]
        sizes = np.zeros_like(spans)
        sizes[order] = np.clip(budget - before, 0, spans[order])
        return sizes

    @override
    def expected_targets(self, num_tokens: int) -> int:
        return round(num_tokens / self.context)
