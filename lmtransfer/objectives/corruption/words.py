"""Units of whole words: each word (BERT), n-grams (ALBERT), spans (SpanBERT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Prob
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.selection import Choice, Selection, sample_order
from lmtransfer.tokenizers.base import Tokenizer


class WordGroups(NamedTuple):
    """The maskable tokens of a row, grouped into words: a piece that begins a word, and the next pieces that do not.

    A special token ends a word. If the start of the row or a special token cuts a word, the rest of the word is a word
    too.

    Attributes:
        positions: indices into the row, int64, ascending, shape (n,).
        edges: word w is ``positions[edges[w]:edges[w + 1]]``, int64, shape (W + 1,).
        follows: whether a word directly follows the previous word, without a token between them, bool, shape (W,).
    """

    positions: np.ndarray
    edges: np.ndarray
    follows: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The number of tokens in each word, int64, shape (W,)."""
        return self.edges[1:] - self.edges[:-1]

    def choose(self, units: Sequence[tuple[int, int]]) -> Choice:
        """Choose the tokens of the given runs of words; each run is a unit.

        Args:
            units: first word of each run, and the word after its last word; runs do not overlap.
        """
        edges = self.edges.tolist()
        places: list[int] = []
        numbers: list[int] = []
        for number, (start, end) in enumerate(sorted(units)):
            places += range(edges[start], edges[end])
            numbers += [number] * (edges[end] - edges[start])
        return Choice(self.positions[places], np.array(numbers, dtype=np.int64))


def words_of(tokens: np.ndarray, maskable: np.ndarray, starts_word: np.ndarray) -> WordGroups:
    """Group the tokens of a row into words.

    Args:
        tokens: the row, int32.
        maskable: positions that may be masked, int64, ascending; at least one.
        starts_word: whether the piece begins a word, for each id, bool.
    """
    follows = np.zeros(len(maskable), dtype=bool)
    np.equal(maskable[1:] - maskable[:-1], 1, out=follows[1:])
    (begins,) = (starts_word[tokens[maskable]] | ~follows).nonzero()
    edges = np.empty(len(begins) + 1, dtype=np.int64)
    edges[:-1], edges[-1] = begins, len(maskable)
    return WordGroups(maskable, edges, follows[begins])


def word_weights(words: WordGroups, tokens: np.ndarray, token_weights: np.ndarray | None) -> np.ndarray | None:
    """Return the mean weight of the tokens of each word, shape (W,); None without ``token_weights``."""
    if token_weights is None:
        return None
    return np.add.reduceat(token_weights[tokens[words.positions]], words.edges[:-1]) / words.sizes


def random_runs(
    words: WordGroups, lengths: np.ndarray, budget: int, rng: np.random.Generator, weights: np.ndarray | None = None
) -> Choice:
    """Choose runs of whole words with random first words, until no further word fits the token budget.

    First words are tried in random order. A run ends before a special token, before a word that is already masked, and
    before a word that exceeds the remaining budget (the whole-word masking of google-research/bert also skips such a
    word). If all words of a row exceed the budget, the first word in that order is masked, so that each row has
    something to predict.

    Args:
        lengths: number of words of the run that would start at each word, int64, shape (W,).
        budget: number of tokens to mask.
        weights: weight of each word as a first word; see ``sample_order``.
    """
    order = sample_order(np.arange(len(lengths)), weights, rng).tolist()
    sizes, follows, limits = words.sizes.tolist(), words.follows.tolist(), lengths.tolist()
    is_masked = [False] * len(order)
    units = []
    for start in order:
        end, last = start, min(start + limits[start], len(order))
        while end < last and not is_masked[end] and sizes[end] <= budget and (end == start or follows[end]):
            is_masked[end] = True
            budget -= sizes[end]
            end += 1
        if end > start:
            units.append((start, end))
            if not budget:
                break
    return words.choose(units or [(order[0], order[0] + 1)])


class WholeWords(Selection):
    """Each word is a unit (the whole-word masking of google-research/bert); at most the budget is chosen.

    Words are tried in random order, and a word that would exceed the budget is skipped; see ``random_runs``.
    """

    supports_weights = True

    @override
    def bind(self, tokenizer: Tokenizer) -> None:
        self.starts_word = tokenizer.starts_word

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        words = words_of(tokens, maskable, self.starts_word)
        weights = word_weights(words, tokens, self.token_weights)
        return random_runs(words, np.ones(len(words.follows), dtype=np.int64), budget, rng, weights)


class NGrams(Selection):
    """Each unit is n consecutive words, with p(n) proportional to 1 / n (Lan et al. 2020, section 4.1).

    Where we differ from google-research/albert: an n-gram does not cross a special token. An n-gram that would overlap
    another ends before it; the published code drops it, and may leave part of the budget unused.

    Args:
        max_words: the largest n.

    Raises:
        ConfigError: ``max_words`` is less than 1.
    """

    supports_weights = True

    def __init__(self, *, max_words: int = 3) -> None:
        if max_words < 1:
            raise ConfigError(f"objective.corruption.selection.max_words={max_words} is not allowed: use 1 or more")
        shares = 1 / np.arange(1, max_words + 1)
        self.cumulative = np.cumsum(shares / shares.sum())[:-1]

    @override
    def bind(self, tokenizer: Tokenizer) -> None:
        self.starts_word = tokenizer.starts_word

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        words = words_of(tokens, maskable, self.starts_word)
        lengths = 1 + self.cumulative.searchsorted(rng.random(len(words.follows)), side="right")
        return random_runs(words, lengths, budget, rng, word_weights(words, tokens, self.token_weights))


class Spans(Selection):
    """Each unit is a span of whole words of geometric length (Joshi et al. 2020, section 3.1).

    Lengths l have p(l) proportional to ``(1 - stop_prob) ** (l - 1)`` for 1 to ``max_words``: a mean of 3.8 words with
    the published numbers. A span starts at a word that is not yet masked. It ends before a special token, before a
    masked word, and before a word that would exceed the budget. The first and last tokens of a row are never masked, so
    that each span has a token on both sides.

    It provides ``left`` and ``right`` of each masked token for the span-boundary objective: the distances in tokens to
    the nearest unmasked token on either side. Adjacent spans count as one span here.

    Args:
        stop_prob: parameter p of the geometric distribution.
        max_words: maximum span length in words.

    Raises:
        ConfigError: ``stop_prob`` is not above 0 and at most 1, or ``max_words`` is less than 1.
    """

    provides = ("left", "right")
    supports_weights = True

    def __init__(self, *, stop_prob: Prob = 0.2, max_words: int = 10) -> None:
        if not 0 < stop_prob <= 1:
            raise ConfigError(
                f"objective.corruption.selection.stop_prob={stop_prob} is not allowed: use a number above 0 and at "
                f"most 1 (0.2 in SpanBERT)"
            )
        if max_words < 1:
            raise ConfigError(f"objective.corruption.selection.max_words={max_words} is not allowed: use 1 or more")
        shares = (1 - stop_prob) ** np.arange(max_words)
        self.cumulative = np.cumsum(shares / shares.sum())[:-1]

    @override
    def bind(self, tokenizer: Tokenizer) -> None:
        self.starts_word = tokenizer.starts_word

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        inner = maskable[(maskable > 0) & (maskable < len(tokens) - 1)]
        if not len(inner):
            return _with_distances(Choice(inner, inner))
        words = words_of(tokens, inner, self.starts_word)
        lengths = 1 + self.cumulative.searchsorted(rng.random(len(words.follows)), side="right")
        weights = word_weights(words, tokens, self.token_weights)
        return _with_distances(random_runs(words, lengths, budget, rng, weights))


def _with_distances(choice: Choice) -> Choice:
    """Return the same choice, with the distances ``left`` and ``right``."""
    positions = choice.positions
    edges = np.flatnonzero(np.diff(positions, prepend=-2, append=np.iinfo(np.int64).max) != 1)
    sizes = np.diff(edges)
    left = np.arange(1, len(positions) + 1) - np.repeat(edges[:-1], sizes)
    return choice._replace(per_target={"left": left, "right": np.repeat(sizes, sizes) + 1 - left})
