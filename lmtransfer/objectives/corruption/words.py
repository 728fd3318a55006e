"""Masking of whole words: single words (BERT), n-grams (ALBERT), spans (SpanBERT) and named entities (ERNIE)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import NgramWords, PositiveProb, Prob
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import Choice, Selection, sample_order
from lmtransfer.tokenizers.base import Tokenizer


class WordGroups(NamedTuple):
    """The maskable tokens of a row, grouped into words: a piece that begins a word and the next pieces that do not.

    A special token ends a word. If the start of the row or a special token cuts a word, the rest counts as a word.

    Attributes:
        edges: word w consists of ``positions[edges[w]:edges[w + 1]]``, int64, shape (W + 1,).
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
        """Choose the tokens of some runs of words; each run is a unit.

        Args:
            units: the first word of each run and the word after its last word; runs do not overlap.
        """
        edges = self.edges.tolist()
        places: list[int] = []
        indices: list[int] = []
        for index, (start, end) in enumerate(sorted(units)):
            places += range(edges[start], edges[end])
            indices += [index] * (edges[end] - edges[start])
        return Choice(self.positions[places], np.array(indices, dtype=np.int64))


def words_of(tokens: np.ndarray, maskable: np.ndarray, starts_word: np.ndarray) -> WordGroups:
    """Group the tokens of a row into words.

    Args:
        maskable: positions that may be masked, int64, ascending; at least one.
        starts_word: whether each piece of the vocabulary begins a word, bool.
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
    """Choose runs of whole words with random first words, until the token budget is used up.

    First words are tried in random order. A run ends before a special token, before a word that is already masked, and
    before a word that exceeds the remaining budget (the whole-word masking of google-research/bert also skips such
    words). If every word of a row exceeds the budget, the first word in the random order is masked, so that each row
    has something to predict.

    Args:
        lengths: number of words in a run that starts at each word, int64, shape (W,).
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


class RunsOfWords(Selection):
    """Each unit is a run of whole words; see ``random_runs``.

    Attributes:
        cumulative: cumulative probabilities of the lengths 1, 2, ... without the last; None if each word is a unit.
    """

    supports_weights = True
    cumulative: np.ndarray | None = None

    @override
    def bind(self, tokenizer: Tokenizer) -> None:
        self.starts_word = tokenizer.starts_word

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        words = words_of(tokens, maskable, self.starts_word)
        lengths = np.ones(len(words.follows), dtype=np.int64)
        if self.cumulative is not None:
            lengths += self.cumulative.searchsorted(rng.random(len(lengths)), side="right")
        return random_runs(words, lengths, budget, rng, word_weights(words, tokens, self.token_weights))


class WholeWords(RunsOfWords):
    """Each word is a unit (the whole-word masking of google-research/bert).

    Words are tried in random order, and a word that would exceed the budget is skipped.
    """


class NGrams(RunsOfWords):
    """Each unit is n consecutive words, with p(n) proportional to 1 / n (Lan et al. 2020, section 4.1).

    Where we differ from google-research/albert: an n-gram does not cross a special token, and an n-gram that would
    overlap another ends before the other. The published code drops such n-grams, and may leave part of the budget
    unused.
    """

    def __init__(self, *, max_words: NgramWords = 3) -> None:
        shares = 1 / np.arange(1, max_words + 1)
        self.cumulative = np.cumsum(shares / shares.sum())[:-1]


class Spans(RunsOfWords):
    """Each unit is a span of whole words of geometric length (Joshi et al. 2020, section 3.1).

    The probability of a length l from 1 to ``max_words`` is proportional to ``(1 - stop_prob) ** (l - 1)``; with the
    published parameters, the mean is 3.8 words. A span starts at a word that is not yet masked. It ends before a
    special token, before a masked word, and before a word that would exceed the budget. The first and last tokens of a
    row are never masked, so that each span has a token on both sides.

    For the span-boundary objective, ``left`` and ``right`` are the distances in tokens from each masked token to the
    nearest unmasked token on either side. Adjacent spans count as one span here.
    """

    provides = ("left", "right")

    def __init__(self, *, stop_prob: PositiveProb = 0.2, max_words: NgramWords = 10) -> None:
        shares = (1 - stop_prob) ** np.arange(max_words)
        self.cumulative = np.cumsum(shares / shares.sum())[:-1]

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        inner = maskable[(maskable > 0) & (maskable < len(tokens) - 1)]
        return _with_distances(super().choose(tokens, inner, budget, rng) if len(inner) else Choice(inner, inner))


def _with_distances(choice: Choice) -> Choice:
    """Add the distances ``left`` and ``right`` to a choice."""
    positions = choice.positions
    edges = np.flatnonzero(np.diff(positions, prepend=-2, append=np.iinfo(np.int64).max) != 1)
    sizes = np.diff(edges)
    left = np.arange(1, len(positions) + 1) - np.repeat(edges[:-1], sizes)
    return choice._replace(per_target={"left": left, "right": np.repeat(sizes, sizes) + 1 - left})


_FIRST_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?]\W*$")
#: Maximum number of words in the cache of word forms; a full cache is emptied.
_MOST_FORMS = 2**17


class WordForm(NamedTuple):
    """The features of a spelled word that indicate entities.

    Attributes:
        is_capitalized: whether the first letter, after any quotes and brackets, is a capital, except in the pronoun I.
        is_name: whether the word is capitalized and begins with its capital letter.
        ends_in_letter: whether no punctuation follows the word.
        ends_sentence: whether the word ends a sentence.
    """

    is_capitalized: bool
    is_name: bool
    ends_in_letter: bool
    ends_sentence: bool

    @classmethod
    def of(cls, text: str) -> WordForm:
        """Analyze a word."""
        first = _FIRST_WORD.search(text)
        capitalized = first is not None and first[0][0].isupper() and first[0] != "I"
        return cls(
            is_capitalized=capitalized,
            is_name=capitalized and text[0].isupper(),
            ends_in_letter=text[-1:].isalnum(),
            ends_sentence=_SENTENCE_END.search(text) is not None,
        )


class Entities(Selection):
    """Each named entity and each word outside entities is a unit (Sun et al. 2019, section 3.2).

    Entities are masked in random order until they reach their share of the budget; words outside entities use the rest.
    (ERNIE masks words, phrases and entities in successive stages; here, each row has masked words and entities.)

    An entity is a run of capitalized words without punctuation between them. Three cases do not count as entities: a
    single word that begins a sentence or a row; the pronoun I; and a run of more than ``max_words`` words, which is
    considered a headline. The rule does not work for languages that capitalize other words too, or that have no capital
    letters.

    Args:
        entity_share: share of the budget up to which entities are masked, a parameter of our own.
    """

    supports_weights = True

    def __init__(self, *, entity_share: Prob = 0.5, max_words: NgramWords = 6) -> None:
        self.entity_share, self.max_words = entity_share, max_words
        self._forms: dict[tuple[int, ...], WordForm] = {}

    @override
    def bind(self, tokenizer: Tokenizer) -> None:
        self.starts_word = tokenizer.starts_word
        special = tokenizer.is_special.tolist()
        self.texts = ["" if special[i] else tokenizer.decode([i]) for i in range(tokenizer.num_pieces)]
        self.has_upper = np.array([any(letter.isupper() for letter in text) for text in self.texts])
        if not any(text.strip()[:1].isupper() for text in self.texts):
            raise ConfigError(
                "objective/corruption=entities finds named entities by their capital letters, but the vocabulary has "
                "no capital letters: use tokenizer.lowercase=false, or objective/corruption=spans"
            )

    @override
    def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
        """Choose at most the budget, or a single word if every unit exceeds the budget."""
        words = words_of(tokens, maskable, self.starts_word)
        weights = word_weights(words, tokens, self.token_weights)
        edges = words.edges.tolist()
        entities = self.entities(tokens, words)
        outside = np.ones(len(words.follows), dtype=bool)
        for start, end in entities:
            outside[start:end] = False
        units, rest = [], budget
        entity_weights = None if weights is None else np.array([weights[start:end].mean() for start, end in entities])
        for index in sample_order(np.arange(len(entities)), entity_weights, rng).tolist():
            if budget - rest >= self.entity_share * budget:
                break
            start, end = entities[index]
            if edges[end] - edges[start] <= rest:
                units.append((start, end))
                rest -= edges[end] - edges[start]
        order = sample_order(np.flatnonzero(outside), None if weights is None else weights[outside], rng).tolist()
        for word in order:
            if not rest:
                break
            if edges[word + 1] - edges[word] <= rest:
                units.append((word, word + 1))
                rest -= edges[word + 1] - edges[word]
        return words.choose(units or [(word, word + 1) for word in order[:1]] or entities[:1])

    def entities(self, tokens: np.ndarray, words: WordGroups) -> list[tuple[int, int]]:
        """Return the first word of each entity and the word after its last word, in order."""
        ids = tokens[words.positions]
        has_upper = np.logical_or.reduceat(self.has_upper[ids], words.edges[:-1])
        pieces, edges = ids.tolist(), words.edges.tolist()

        def form(word: int) -> WordForm:
            return self._form(tuple(pieces[edges[word] : edges[word + 1]]))

        continues = (has_upper & words.follows).tolist()
        spans, end = [], 0
        for start in has_upper.nonzero()[0].tolist():
            if start < end or not (last := form(start)).is_capitalized:
                continue
            end = start + 1
            while end < len(continues) and continues[end] and last.ends_in_letter and (after := form(end)).is_name:
                last, end = after, end + 1
            # At the start of a sentence, a single capitalized word need not be a name.
            alone = end - start == 1 and (start == 0 or not words.follows[start] or form(start - 1).ends_sentence)
            if end - start <= self.max_words and not alone:
                spans.append((start, end))
        return spans

    def _form(self, ids: tuple[int, ...]) -> WordForm:
        """Return the form of a word, given its pieces, from a cache."""
        form = self._forms.get(ids)
        if form is None:
            if len(self._forms) == _MOST_FORMS:
                self._forms.clear()
            form = self._forms[ids] = WordForm.of("".join(self.texts[i] for i in ids).strip())
        return form
