"""Named entities as units (ERNIE), recognized by their capital letters."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.selection import Choice, Selection, sample_order
from lmtransfer.objectives.corruption.words import WordGroups, word_weights, words_of
from lmtransfer.tokenizers.base import Tokenizer

_FIRST_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?]\W*$")
#: Maximum number of words in the cache of forms; a full cache is emptied.
_MOST_FORMS = 2**17


class WordForm(NamedTuple):
    """What a word's letters indicate about entities.

    Attributes:
        is_capitalized: whether its first letter, after quotes and brackets, is a capital; the pronoun I does not count.
        is_name: whether, in addition, nothing precedes the capital letter.
        ends_in_letter: whether no punctuation follows it.
        ends_sentence: whether it ends a sentence.
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
    """Each named entity is a unit, and so is each word outside entities (Sun et al. 2019, section 3.2).

    Entities are masked in random order until they reach their share of the budget; words outside entities use the rest.
    (ERNIE masks words, phrases and entities in successive stages; here each row has masked words and entities.)

    An entity is a run of capitalized words without punctuation between them. Three cases do not count as entities: a
    single word that begins a sentence or a row; the pronoun I; and a run of more than ``max_words``, which is
    considered a headline. The rule does not work for languages that also capitalize other words, or that have no
    capital letters.

    Args:
        entity_share: entities are masked until they reach this share of the budget, which is our own choice.
        max_words: maximum entity length in words.

    Raises:
        ConfigError: ``entity_share`` is not between 0 and 1, or ``max_words`` is less than 1.
    """

    supports_weights = True

    def __init__(self, *, entity_share: float = 0.5, max_words: int = 6) -> None:
        if not 0 <= entity_share <= 1:
            raise ConfigError(
                f"objective.corruption.selection.entity_share={entity_share} is not allowed: use a number from 0 to 1"
            )
        if max_words < 1:
            raise ConfigError(f"objective.corruption.selection.max_words={max_words} is not allowed: use 1 or more")
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
        for number in sample_order(np.arange(len(entities)), entity_weights, rng).tolist():
            if budget - rest >= self.entity_share * budget:
                break
            start, end = entities[number]
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
        """Return the first word of each entity of a row and the word after its last word, in order."""
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
            # At the beginning of a sentence, a capital letter alone does not indicate a name.
            alone = end - start == 1 and (start == 0 or not words.follows[start] or form(start - 1).ends_sentence)
            if end - start <= self.max_words and not alone:
                spans.append((start, end))
        return spans

    def _form(self, ids: tuple[int, ...]) -> WordForm:
        """Return the form of the word composed of these pieces, from a cache."""
        form = self._forms.get(ids)
        if form is None:
            if len(self._forms) == _MOST_FORMS:
                self._forms.clear()
            form = self._forms[ids] = WordForm.of("".join(self.texts[i] for i in ids).strip())
        return form
