"""The trainer of a word vocabulary on a corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from typing_extensions import override

from lmtransfer.config.types import Count, Whole
from lmtransfer.errors import DataError
from lmtransfer.tokenizers.model_files import SPECIALS
from lmtransfer.tokenizers.trainer import LineCounts, TokenizerTrainer
from lmtransfer.tokenizers.words import WordTokenizer, split_words

_VERSION = 1  # increase it when the same settings and text would give another vocabulary


class WordTokenizerTrainer(TokenizerTrainer):
    """A trainer of vocabularies of the most frequent words.

    The result depends only on the settings and the lines. A text with fewer different words gives a smaller vocabulary.

    Args:
        vocab_size: maximum number of words, including the four special tokens.
        lowercase: fold case.
        min_frequency: drop words that occur less often than this in the sample.
        max_sentences: maximum number of lines to count words in; a seeded sample of a larger corpus.
        max_characters: maximum number of characters to count words in; limits memory (about 4 bytes per character) and
            time.
        seed: seed of the sample.

    Raises:
        ConfigError: a value is out of range.
    """

    provides_characters = True

    def __init__(
        self,
        *,
        vocab_size: Count = 32768,
        lowercase: bool = True,
        min_frequency: int = 2,
        max_sentences: int = 1_000_000,
        max_characters: int = 20_000_000,
        seed: Whole = 0,
    ) -> None:
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        self.min_frequency = min_frequency
        self.max_sentences = max_sentences
        self.max_characters = max_characters
        self.seed = seed
        self.check(vocab_size=len(SPECIALS) + 1, min_frequency=1)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {**vars(self), "version": _VERSION}

    @property
    @override
    def fingerprint(self) -> str:
        return sha256(json.dumps({"kind": "words", **self.settings}, sort_keys=True).encode()).hexdigest()

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> WordTokenizer:
        """Build a tokenizer with the most frequent words; its ``training`` has the share of text that they cover."""
        frequencies: Counter[str] = Counter()
        for line in sample:
            frequencies.update(split_words(line, lowercase=self.lowercase))
        frequent = ((word, count) for word, count in frequencies.items() if count >= self.min_frequency)
        ranked = sorted(frequent, key=lambda item: (-item[1], item[0]))[: self.vocab_size - len(SPECIALS)]
        if not ranked:
            raise DataError(
                f"no word occurs {self.min_frequency} times in the text ({counts.lines_seen} lines, "
                f"{counts.characters_used} characters used): use more text, or set a lower tokenizer.min_frequency"
            )
        share = sum(count for _, count in ranked) / frequencies.total()
        return WordTokenizer([word for word, _ in ranked], lowercase=self.lowercase, training={"known_share": share})
